"""Clocks that are passed in, so that tests set the time instead of waiting for it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time in seconds since the epoch."""

    def __call__(self) -> float: ...


def system_clock() -> float:
    """Return this machine's wall-clock time."""
    return time.time()


class ManualClock:
    """A clock that moves only when told. Starts in 2030, which no real clock of a test run will reach."""

    def __init__(self, start: float = 1_900_000_000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds`` (which may be negative: a clock set back)."""
        self.now += seconds
