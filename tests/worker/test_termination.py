"""``terminate_after``: the replaced body's process ends, another task's never does."""

from __future__ import annotations

import threading
from typing import Any

from celery_guard.core.contract import Acquired, Lease
from celery_guard.core.session import Session
from celery_guard.worker.termination import Termination, in_pool_child


def session() -> Session:
    lease = Lease(key="k", lock_key="l", owner="o/1", token=7, lease=60_000)
    store: Any = None
    return Session(Acquired(lease=lease, attempt=1, expires_at=0), store, asked_at=0.0, monotonic=lambda: 0.0)


def test_a_body_that_goes_on_after_its_grace_is_killed() -> None:
    killed = threading.Event()
    it = session()
    it.on_lost = Termination(it, 0.01, kill=killed.set).start
    it.mark_lost("superseded")
    assert killed.wait(5)


def test_a_body_that_has_ended_is_not_killed() -> None:
    kills: list[str] = []
    it = session()
    termination = Termination(it, 0.01, kill=lambda: kills.append("killed"))
    it.on_lost = termination.start
    it.mark_lost("superseded")
    termination.close()
    termination._end()  # the timer that had just gone off
    assert kills == []


def test_the_way_out_waits_for_a_kill_that_has_begun() -> None:
    """Between the decision and the death of the process no other task may start."""
    begun, may_end, order = threading.Event(), threading.Event(), []

    def kill() -> None:
        begun.set()
        may_end.wait(5)
        order.append("killed")

    it = session()
    termination = Termination(it, 0.0, kill=kill)
    termination.start("superseded")
    assert begun.wait(5)

    def leave() -> None:
        termination.close()
        order.append("left")

    leaving = threading.Thread(target=leave)
    leaving.start()
    may_end.set()
    leaving.join(5)
    assert order == ["killed", "left"]


def test_a_silent_store_is_no_verdict() -> None:
    kills: list[str] = []
    it = session()
    termination = Termination(it, 0.0, kill=lambda: kills.append("killed"))
    it.on_lost = termination.start
    it.mark_lost("missing")
    assert termination._timer is None and kills == []


def test_a_process_that_is_no_pool_child_is_never_killed() -> None:
    assert not in_pool_child()
