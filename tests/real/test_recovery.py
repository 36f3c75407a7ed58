"""Owners that die, hang, or come back: recovery in lease time, fencing, and an end for poison."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from celery_guard.core.contract import Lease, Refused
from celery_guard.core.states import State
from celery_guard.testing.processes import wait_until
from celery_guard.testing.servers.redis import RedisServer

from .conftest import left
from .lab import Lab

pytestmark = pytest.mark.real


def test_a_killed_worker_is_replaced_in_lease_time(lab: Callable[..., Lab]) -> None:
    it = lab()  # a visibility timeout of an hour
    workers = {node: it.worker(node) for node in "AB"}
    it.run("slow.apply_async((1, 6))")
    it.bodies.wait_for("start")
    workers[it.starts()[0]["node"]].sigkill_group()
    killed = time.time()
    it.bodies.wait_for("start", count=2, timeout=6 + 5)
    assert time.time() - killed < 6 + 5
    it.bodies.wait_for("end", timeout=20)
    assert it.bodies.count("end") == 1
    assert [s["attempt"] for s in it.starts()] == [1, 2]


def test_poison_ends_after_max_attempts(lab: Callable[..., Lab], lab_redis: RedisServer) -> None:
    it = lab()
    it.app_text(
        """
@task(lease=3, max_attempts=3)
def poison(self):
    log("start"); os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    it.worker("A")
    answer = it.run(
        "r = poison.apply_async()\n"
        "try: r.get(timeout=60)\n"
        "except Exception as exc: print(type(exc).__name__)",
        timeout=90,
    )
    assert answer == "ExecutionDeadError"
    assert it.bodies.count("start") == 3
    assert it.states("poison") == [State.DEAD]
    wait_until(lambda: left(lab_redis) == 0, 20, "the message to be gone")
    # the lock is free: another call runs (and dies) again
    it.run("poison.apply_async()")
    it.bodies.wait_for("start", count=4, timeout=20)


def test_a_sleeper_wakes_to_find_all_its_writes_refused(lab: Callable[..., Lab]) -> None:
    it = lab()
    workers = {node: it.worker(node) for node in "AB"}
    it.run("open('id', 'w').write(slow.apply_async((1, 8)).id)")
    it.bodies.wait_for("start")
    sleeper = it.starts()[0]["node"]
    a = workers[sleeper]
    held = it.executions()[0]
    a.sigstop_group()
    it.bodies.wait_for("start", count=2, timeout=15)
    store = it.store()
    lease = Lease(
        key=held.key, lock_key=held.lock_key, owner=held.owner or "", token=held.token or 0, lease=6000
    )
    for answer in (*store.renew([lease]), store.checkpoint(lease, "x"), store.verify(lease)):
        assert isinstance(answer, Refused)
    a.sigcont_group()
    it.bodies.wait_for("end", timeout=20)
    a.wait_for_log("ignored", 20)
    ended = it.ends()
    assert [e["node"] for e in ended] == ["A" if sleeper == "B" else "B"]
    assert ended[0]["token"] == it.starts()[1]["token"] > it.starts()[0]["token"]
    assert it.run("print(app.AsyncResult(open('id').read()).get(timeout=5))") == "1"
    assert it.states() == [State.SUCCEEDED]


def test_one_holder_through_a_body_much_longer_than_its_lease(lab: Callable[..., Lab]) -> None:
    it = lab()
    it.app_text(
        """
@task(lease=2)
def long(self):
    log("start"); time.sleep(7); self.guard.check(ask_store=True); log("end")
"""
    )
    it.worker("A", concurrency=2)
    it.run("long.apply_async()")
    it.bodies.wait_for("start")
    store = it.store()
    tokens, longest = set(), 0
    while not it.ends():
        found = store.get(it.executions()[0].key)
        if found.state is State.RUNNING:
            tokens.add(found.token)
            longest = max(longest, found.expires_at - store.now())
    assert len(tokens) == 1 and longest <= 2000
    assert it.bodies.count("start") == 1


def test_retries_with_a_rival_between_and_the_worker_killed_in_the_countdown(lab: Callable[..., Lab]) -> None:
    it = lab(visibility=3)
    it.app_text(
        """
@task(lease=4, celery=dict(max_retries=3))
def tries(self, name):
    log("start", name=name, retries=self.request.retries)
    if name == "own" and self.request.retries < 2: raise self.retry(countdown=3)
    log("end", name=name); return name
"""
    )
    a = it.worker("A")
    it.run("open('id', 'w').write(tries.apply_async(('own',)).id)")
    it.wait_state(State.RETRYING)
    it.run("tries.apply_async(('rival',))")
    it.bodies.wait_for("end", name="rival")  # the lock is free between two tries
    a.sigkill_group()
    it.worker("B")
    assert it.run("print(app.AsyncResult(open('id').read()).get(timeout=50))", timeout=60) == "own"
    assert [r["retries"] for r in it.bodies.read("start", name="own")] == [0, 1, 2]
    it.run("tries.apply_async(('after',))")
    it.bodies.wait_for("end", name="after")
    assert it.states("tries").count(State.SUCCEEDED) == 3


def test_heartbeat_outlives_a_short_outage_and_ends_the_body_in_a_long_one(
    lab: Callable[..., Lab], tmp_path: object
) -> None:
    with RedisServer() as store_server:
        it = lab(store=store_server.url)
        it.worker("A")
        it.run("slow.apply_async((1, 7))")
        it.bodies.wait_for("start")
        store_server.pause()
        time_out = time.monotonic() + 3  # half a lease
        wait_until(lambda: time.monotonic() > time_out, 5, "half a lease")
        store_server.resume()
        it.bodies.wait_for("end", timeout=20)
        assert it.bodies.count("start") == 1
        it.run("slow.apply_async((2, 25))")
        it.bodies.wait_for("start", n=2)
        store_server.pause()
        worker = it._workers[0]
        worker.wait_for_log("its lease is lost", 30)
        store_server.resume()
        it.bodies.wait_for("end", n=2, timeout=60)
        assert it.bodies.count("end", n=2) == 1
        assert it.bodies.count("start", n=2) == 2


def test_a_client_used_before_the_fork_crosses_no_replies(lab: Callable[..., Lab]) -> None:
    it = lab()
    it.app_text(
        """
store_of(app).now()   # in the parent, before the pool forks
@task(overlap="allow", lease=10)
def mine(self, n):
    found = store_of(app).get(self.guard.key)
    log("end", n=n, right=found.trigger_id == self.request.id and found.token == self.guard.token); return n
"""
    )
    it.worker("A", "--max-tasks-per-child=1", concurrency=8)
    it.run(
        "rs = [mine.apply_async((n,)) for n in range(80)]\nassert [r.get(timeout=60) for r in rs] == list(range(80))"
    )
    ends = it.ends()
    assert len(ends) == 80 and all(e["right"] for e in ends)


def test_a_worker_with_a_clock_ten_minutes_off_takes_nothing_over(lab: Callable[..., Lab]) -> None:
    library = next(
        (
            p
            for p in (
                f"/usr/lib/{arch}-linux-gnu/faketime/libfaketime.so.1" for arch in (os.uname().machine,)
            )
            if os.path.exists(p)
        ),
        None,
    )
    if library is None:
        message = "libfaketime is not installed"
        pytest.fail(message) if os.environ.get("CELERY_GUARD_REQUIRE_SERVERS") == "1" else pytest.skip(
            message
        )
    it = lab(visibility=3600)
    it.worker("A")
    it.run("slow.apply_async((1, 10))")
    it.bodies.wait_for("start")
    it.worker("B", LD_PRELOAD=library, FAKETIME="+10m", FAKETIME_DONT_FAKE_MONOTONIC="1")
    it.run("slow.apply_async((2, 0))")  # B looks at the lock, too
    it.bodies.wait_for("end", n=1, timeout=25)
    assert it.bodies.count("start") == 1
    assert sorted(it.states("slow")) == [State.SKIPPED, State.SUCCEEDED]


def test_signals_are_not_needed_to_see_a_child_die(lab: Callable[..., Lab]) -> None:
    """Parent sees the child die: the next attempt starts long before the lease would end."""
    it = lab()
    it.app_text(
        """
@task(lease=60)
def once_killed(self):
    log("start", attempt=self.guard.attempt)
    if self.guard.attempt == 1: os.kill(os.getpid(), signal.SIGKILL)
    log("end")
"""
    )
    it.worker("A")
    it.run("once_killed.apply_async()")
    it.bodies.wait_for("end", timeout=25)
    assert [s["attempt"] for s in it.starts()] == [1, 2]
