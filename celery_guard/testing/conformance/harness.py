"""What a store's author provides, and the fixtures that the tests of the suite take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar

import pytest

from celery_guard.core.clock import Clock
from celery_guard.core.contract import Store
from celery_guard.testing.conformance.scene import Scene, SteppedClock

#: Overrides :attr:`Harness.rounds` of every store, for a long run.
ROUNDS = "CELERY_GUARD_CONFORMANCE_ROUNDS"


class Harness:
    """The hooks of the suite. :meth:`connect` and :meth:`wipe` are required; a hook that a store cannot give
    is left out, and the tests that need it are skipped with that reason."""

    #: How often a contention test is repeated, unless the environment says otherwise; 200 for a full run.
    rounds: ClassVar[int] = 20
    #: How many compete at once, each with a connection of its own.
    contenders: ClassVar[int] = 50
    #: Whether the store's time comes from elsewhere than Python's clock in this process.
    own_time: ClassVar[bool] = True

    def connect(self, clock: Clock | None) -> Store:
        """Return a new, separate connection to the same store. ``clock`` replaces the store's time where it
        is given. Called from any thread; the connection is used by one thread at a time."""
        raise NotImplementedError("say how to connect to the store")

    def wipe(self) -> None:
        """Lose everything that the store has, as FLUSHALL or a new disk does. Open connections stay usable.
        Called before each test, too."""
        raise NotImplementedError("say how to empty the store")

    def opener(self) -> Callable[[], Store] | None:
        """Return a function that pickles and opens the store in another process, by the store's own time."""
        return None

    def restart(self) -> None:
        """Restart the store's server, with the data that it is set up to keep."""
        pytest.skip("this store has no server to restart")

    def unreachable(self) -> Store:
        """Return a store whose server is not there."""
        pytest.skip("this store has no server that could be away")

    # -- for the tests ------------------------------------------------------------------------------

    def how_often(self) -> int:
        """Return how many rounds a contention test has."""
        return int(os.environ.get(ROUNDS) or self.rounds)

    @pytest.fixture
    def scene(self) -> Iterator[Scene]:
        """An empty store that goes by a clock of the test."""
        self.wipe()
        clock = SteppedClock()
        scene = Scene(partial(self.connect, clock), clock)
        yield scene
        scene.close()

    @pytest.fixture
    def live(self) -> Iterator[Scene]:
        """An empty store that goes by its own time."""
        self.wipe()
        scene = Scene(partial(self.connect, None), None)
        yield scene
        scene.close()
