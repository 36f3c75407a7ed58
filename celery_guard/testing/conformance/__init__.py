"""The conformance suite: every promise of a store, as tests that the store's author inherits.

A store's test module says how to connect and how to empty the store, and inherits the rest::

    from celery_guard.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        def connect(self, clock):          # a new, separate connection; ``clock`` replaces the store's time
            return MyStore("my://server", clock=clock)

        def wipe(self):                    # lose everything, as FLUSHALL or a new disk does
            MyStore("my://server").flush()

        def opener(self):                  # optional: pickles, and opens the store in another process
            return functools.partial(MyStore, "my://server")

Optional too are ``restart()``, ``unreachable()``, ``rounds`` and ``contenders``: see :class:`Harness`. A
fixture with ``autouse=True`` in the class is the place to start a server. For a full run set
``CELERY_GUARD_CONFORMANCE_ROUNDS=200``.

Needs pytest. Nothing in the suite sleeps: time is a clock that the store is given, or the store's own time,
which is asked until it is late enough.
"""

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "answering",
            "coalescing",
            "contention",
            "crowd",
            "debouncing",
            "dispatching",
            "exclusion",
            "fencing",
            "identity",
            "leases",
            "limits",
            "records",
            "recovering",
            "replacing",
            "reserving",
            "retrying",
            "scene",
            "slots",
            "throttling",
            "tokens",
            "transitions",
            "waiting",
        )
    )
)

from celery_guard.testing.conformance.harness import ROUNDS, Harness  # noqa: E402
from celery_guard.testing.conformance.scene import Scene, SteppedClock  # noqa: E402
from celery_guard.testing.conformance.suite import StoreConformance  # noqa: E402 - after the registration

__all__ = ["ROUNDS", "Harness", "Scene", "SteppedClock", "StoreConformance"]
