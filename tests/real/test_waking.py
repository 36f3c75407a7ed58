"""Whoever waits is woken, also where the process dies that should have told it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_guard.core.states import State
from celery_guard.testing.processes import wait_until

from .lab import Lab

pytestmark = pytest.mark.real

DIES_BEFORE_IT_WAKES = """
from celery_guard.worker.runtime import Runtime
tell = Runtime.send
def send(self, dispatches, **options):
    dispatches = list(dispatches)
    if os.environ["NODE"] == "A" and any(one.why == "released" for one in dispatches):
        log("dies")
        os.killpg(0, signal.SIGKILL)
    return tell(self, dispatches, **options)
Runtime.send = send

@task(overlap="queue", lease=60)
def one_by_one(self, n, seconds):
    log("start", n=n)
    time.sleep(seconds)
    log("end", n=n)
    return n
"""


def test_killed_between_release_and_wake_up(lab: Callable[..., Lab]) -> None:
    """The store has released the lock and given it to the next; the message that says so was never sent."""
    it = lab()
    it.app_text(DIES_BEFORE_IT_WAKES)
    it.worker("A", concurrency=2)
    it.run("one_by_one.delay(0, 5)")
    wait_until(lambda: it.bodies.count("start") == 1, 20, "the holder to run")
    it.run("for n in range(1, 4): one_by_one.delay(n, 0)")
    it.wait_state(State.WAITING, count=3)
    wait_until(lambda: it.bodies.count("dies") == 1, 30, "the releasing process to die")
    assert it.bodies.count("start") == 1
    it.worker("B", concurrency=2)
    wait_until(lambda: it.bodies.count("end") == 4, 30, "all others to run")
    assert [line["n"] for line in it.starts()] == [0, 1, 2, 3]
    it.wait_state(State.SUCCEEDED, count=4)
