"""The conformance suite against every store of the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from celery_guard.core.clock import Clock, system_clock
from celery_guard.stores.memory import MemoryStore
from celery_guard.testing.conformance import StoreConformance

pytestmark = pytest.mark.conformance


class SwitchedClock:
    """The clock of a memory store that lives through a test: the test's where there is one."""

    inner: Clock | None = None

    def __call__(self) -> float:
        return (self.inner or system_clock)()


class TestMemoryStore(StoreConformance):
    """The reference. Connections to it are the object itself: it has no others."""

    rounds: ClassVar[int] = 200
    own_time: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def memory(self) -> Iterator[None]:
        self.clock = SwitchedClock()
        self.shared = MemoryStore(clock=self.clock)
        yield

    def connect(self, clock: Clock | None) -> MemoryStore:
        self.clock.inner = clock
        return self.shared

    def wipe(self) -> None:
        self.shared._records.clear()
        self.shared._locks.clear()
        self.shared._finals.clear()
        self.shared._dispatcher = None
