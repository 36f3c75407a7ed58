"""A message that is copied, or comes back, while its execution lives, after it, and between finish and ack."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_guard.core.states import State
from celery_guard.testing.processes import wait_until
from celery_guard.testing.servers.redis import RedisServer

from .conftest import left
from .lab import Lab

pytestmark = pytest.mark.real


@pytest.mark.parametrize("hold", [True, False], ids=["visibility held", "copies come"])
def test_a_long_body_outlives_the_visibility_timeout(
    lab: Callable[..., Lab], lab_redis: RedisServer, hold: bool
) -> None:
    it = lab(visibility=3, hold=hold)
    it.worker("A")
    it.run("slow.apply_async((1, 14))")
    it.bodies.wait_for("start")
    b = it.worker("B")
    it.bodies.wait_for("end", timeout=30)
    wait_until(lambda: left(lab_redis) == 0, 15, "all messages acknowledged")
    assert it.bodies.count("start") == 1
    assert ("received" in b.log) is not hold  # without the hold the second worker did see the copy


def test_the_owner_dies_after_the_copy_was_seen(lab: Callable[..., Lab], lab_redis: RedisServer) -> None:
    it = lab(visibility=3, hold=False)
    workers = {node: it.worker(node) for node in "AB"}
    it.run("slow.apply_async((1, 15))")
    it.bodies.wait_for("start")
    first_node = it.starts()[0]["node"]
    other = workers["A" if first_node == "B" else "B"]
    other.wait_for_log("ignored", 20)  # it saw the copy
    workers[first_node].sigkill_group()
    it.bodies.wait_for("end", timeout=50)
    first, second = it.starts()
    assert second["token"] > first["token"] and second["attempt"] == 2
    assert it.bodies.count("end") == 1
    wait_until(lambda: left(lab_redis) == 0, 15, "all messages acknowledged")
    assert it.states() == [State.SUCCEEDED]


def test_a_countdown_longer_than_the_visibility_timeout_runs_once(lab: Callable[..., Lab]) -> None:
    it = lab(visibility=3)
    for node in "ABC":
        it.worker(node)
    it.run("slow.apply_async((1, 0.2), countdown=12)")
    it.bodies.wait_for("end", timeout=40)
    it.wait_state(State.SUCCEEDED)
    assert it.bodies.count("start") == 1


def test_killed_between_finish_and_acknowledge(lab: Callable[..., Lab]) -> None:
    it = lab(visibility=3)
    it.app_text(
        """
@task(lease=6)
def quick(self):
    log("start"); return 42
@task(lease=6)
def follow(self, x):
    log("next", x=x); return x + 1
@signals.task_success.connect
def die(sender=None, **kwargs):
    if sender.name == "labapp.quick" and not os.path.exists("died"):
        open("died", "w").close(); os.killpg(os.getpgid(0), signal.SIGKILL)
"""
    )
    a = it.worker("A")
    it.run("r = chain(quick.s(), follow.s()).apply_async(); open('ids', 'w').write(r.parent.id + ' ' + r.id)")
    wait_until(lambda: not a.running, 20, "the worker to be killed")
    it.worker("B")
    assert it.run("print(app.AsyncResult(open('ids').read().split()[1]).get(timeout=30))") == "43"
    assert it.run("print(app.AsyncResult(open('ids').read().split()[0]).get(timeout=5))") == "42"
    assert it.bodies.count("start") == 1 and it.bodies.count("next") == 1


def test_one_execution_key_from_two_workers_at_the_same_moment(lab: Callable[..., Lab]) -> None:
    it = lab()
    it.app_text(
        """
@task(key="{n}", unique_for="1h", overlap="allow", lease=10)
def once(self, n):
    log("start", n=n); time.sleep(0.01); return n
"""
    )
    it.worker("A", concurrency=2)
    it.worker("B", concurrency=2)
    rounds = 200
    # the same message twice, published around the reservation as two publishers that do not see each other would
    it.run(
        f"app.finalize()\nfor n in range({rounds}):\n"
        "    for _ in range(2): app.send_task._original('labapp.once', (n,), headers={'guard': {'v': 1}})\n",
        timeout=120,
    )
    wait_until(lambda: len({r["n"] for r in it.starts()}) == rounds, 60, "every key ran")
    it.wait_state(State.SUCCEEDED, count=rounds, timeout=60)
    assert it.bodies.count("start") == rounds
