"""Waiting for a condition: the one place in the tests where time is allowed to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ConditionNotMetError(AssertionError):
    """A condition did not come true in time. ``waited`` is in seconds, ``last`` what it answered last."""

    def __init__(self, message: str, waited: float, last: object) -> None:
        super().__init__(message, waited, last)
        self.message = message
        self.waited = waited
        self.last = last

    def __str__(self) -> str:
        return f"{self.message}: still not so after {self.waited:g} s (last answer: {self.last!r})"


def wait_until(
    condition: Callable[[], T], timeout: float = 30.0, message: str = "", *, interval: float = 0.02
) -> T:
    """Return the first true answer of ``condition``, asked every ``interval`` seconds.

    It is asked at least once, and once more at the very end. After ``timeout`` seconds:
    `ConditionNotMetError`, an ``AssertionError``. What the condition raises is not caught.
    """
    deadline = time.monotonic() + timeout
    while True:
        # The clock is read before the question: a machine that stalls in between asks once more.
        over = time.monotonic() >= deadline
        answer = condition()
        if answer:
            return answer
        if over:
            name = message or getattr(condition, "__name__", "condition")
            raise ConditionNotMetError(name, timeout, answer)
        time.sleep(interval)
