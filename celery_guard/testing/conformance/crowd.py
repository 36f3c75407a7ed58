"""Real contention: many threads, each with a connection of its own, started on one signal; and processes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from celery_guard.core.contract import Acquired, Done, Finish, Store, Trigger
from celery_guard.core.states import State
from celery_guard.testing.conformance.scene import LOCK, MINUTE, PAYLOAD, TASK

T = TypeVar("T")

#: How long all of a crowd may take to be ready, in seconds.
PATIENCE = 120.0


class Crowd:
    """``size`` threads that act at the same moment, round after round."""

    def __init__(self, connect: Callable[[], Store], size: int) -> None:
        self._connect = connect
        self._size = size
        self._start = threading.Barrier(size)
        self._mine = threading.local()
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="crowd")

    def _one(self, number: int, work: Callable[[int, Store], T]) -> T:
        if not hasattr(self._mine, "store"):
            # opened in the thread that uses it, and before the signal: connecting is not the race
            self._mine.store = self._connect()
            self._mine.store.now()
        self._start.wait(PATIENCE)
        return work(number, self._mine.store)

    def round(self, work: Callable[[int, Store], T]) -> list[T]:
        """Do ``work(number, store)`` in all threads at once; return the answers by number."""
        # As many pieces of work as threads, and each waits for all: so each thread has exactly one.
        return [
            future.result()
            for future in [self._threads.submit(self._one, n, work) for n in range(self._size)]
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.round(lambda _number, store: store.close())
        self._threads.shutdown(wait=True, cancel_futures=True)


#: What one process says of each attempt it had: token, begun and about to end, in ns of the machine's clock.
Attempts = list[tuple[int, int, int]]


def compete(opener: Callable[[], Store], name: str, wanted: int) -> Attempts:
    """Take one lock ``wanted`` times against whoever else wants it, by the store's own time.

    Runs in a process of its own."""
    store = opener()
    attempts: Attempts = []
    try:
        for number in itertools.count():
            key = f"{name}-{number}"
            trigger = Trigger(
                key=key,
                task=TASK,
                lock_key=LOCK,
                trigger_id=key,
                fingerprint=PAYLOAD,
                message="",
                lease=MINUTE,
            )
            answer = store.begin(trigger, owner=f"{key}/1").answer
            if not isinstance(answer, Acquired):
                continue
            begun = time.monotonic_ns()
            assert isinstance(store.checkpoint(answer.lease, key), Done)
            ending = time.monotonic_ns()
            assert isinstance(store.finish(Finish(lease=answer.lease, state=State.SUCCEEDED)), Done)
            attempts.append((answer.lease.token, begun, ending))
            if len(attempts) >= wanted:
                break
    finally:
        store.close()
    return attempts
