"""Other brokers, other pools: RabbitMQ restarted under a body, and every pool's dispatcher and heartbeat."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from celery_guard.core.states import State
from celery_guard.testing.processes import WorkerProcess, wait_until
from celery_guard.testing.servers.rabbitmq import RabbitMQServer

from .lab import Lab

pytestmark = pytest.mark.real


def test_rabbitmq_restarted_under_a_body(lab: Callable[..., Lab], rabbitmq_server: RabbitMQServer) -> None:
    it = lab(broker=rabbitmq_server.url)
    worker = it.worker("A")
    it.run("open('id', 'w').write(slow.apply_async((1, 12)).id)")
    it.bodies.wait_for("start")
    rabbitmq_server.restart()
    it.bodies.wait_for("end", timeout=40)
    it.wait_state(State.SUCCEEDED)
    # The broker gives the message back, since its acknowledgement died with the connection; the copy finds the
    # outcome. A second task behind it shows that the copy is through.
    it.run("open('id2', 'w').write(slow.apply_async((2, 0)).id)", timeout=90)
    it.bodies.wait_for("end", n=2, timeout=60)
    assert it.bodies.count("start", n=1) == 1
    assert it.run("print(app.AsyncResult(open('id').read()).get(timeout=20))") == "1"
    assert worker.running


def test_a_killed_worker_on_rabbitmq_is_replaced(
    lab: Callable[..., Lab], rabbitmq_server: RabbitMQServer
) -> None:
    it = lab(broker=rabbitmq_server.url)
    a = it.worker("A")
    it.run("slow.apply_async((1, 5))")
    it.bodies.wait_for("start")
    a.sigkill_group()
    it.worker("B")
    it.bodies.wait_for("end", timeout=40)
    assert [s["attempt"] for s in it.starts()] == [1, 2] and it.bodies.count("end") == 1


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "eventlet"])
def test_every_pool_guards_renews_and_recovers(lab: Callable[..., Lab], pool: str) -> None:
    if pool in ("gevent", "eventlet") and importlib.util.find_spec(pool) is None:
        pytest.skip(f"{pool} is not installed")
    it = lab()
    it.app_text(
        """
@task(lease=2)
def beyond(self, n):
    log("start", n=n, attempt=self.guard.attempt)
    for _ in range(60):
        time.sleep(0.1); self.guard.check()
    log("end", n=n); return n
"""
    )
    dead = it.worker("dead")  # a prefork worker, killed: the other pool's dispatcher recovers its execution
    it.run("beyond.apply_async((1,))")
    it.bodies.wait_for("start")
    dead.sigkill_group()
    it.worker("other", concurrency=4, pool=pool)
    it.bodies.wait_for("end", timeout=40)
    assert [s["attempt"] for s in it.starts()] == [1, 2]
    assert it.bodies.read("start")[1]["node"] == "other"  # and its heartbeat held a 2 s lease for 6 s
    assert it.states("beyond") == [State.SUCCEEDED]


def test_warm_shutdown_finishes_and_a_cold_one_hands_over(lab: Callable[..., Lab]) -> None:
    import signal

    it = lab()
    a = it.worker("A")
    it.run("slow.apply_async((1, 4))")
    it.bodies.wait_for("start", n=1)
    a.warm_shutdown()
    a.wait(30)
    assert it.bodies.count("end", n=1) == 1
    a = it.worker("A2")
    it.run("slow.apply_async((2, 6))")
    it.bodies.wait_for("start", n=2)
    a.send_signal(signal.SIGQUIT)
    it.worker("B")
    it.bodies.wait_for("end", n=2, timeout=40)
    assert it.bodies.count("end", n=2) == 1
    assert it.states("slow") == [State.SUCCEEDED] * 2


def test_terminate_and_time_limits_free_the_lock_at_once(lab: Callable[..., Lab]) -> None:
    it = lab()
    it.app_text(
        """
@task(lease=60)
def endless(self, n):
    log("start", n=n)
    if n < 3: time.sleep(60)
    log("end", n=n)
"""
    )
    it.worker("A")
    it.run("open('id', 'w').write(endless.apply_async((1,)).id)")
    it.bodies.wait_for("start", n=1)
    it.run("app.control.revoke(open('id').read(), terminate=True)")
    it.wait_state(State.REVOKED)
    it.run("endless.apply_async((2,), time_limit=2)")
    it.bodies.wait_for("start", n=2, timeout=20)
    it.wait_state(State.FAILED)
    it.run("endless.apply_async((3,))")
    it.bodies.wait_for("end", n=3, timeout=20)
    assert sorted(it.states("endless")) == [State.FAILED, State.REVOKED, State.SUCCEEDED]


def test_a_beat_entry_alone_guards_a_plain_task(lab: Callable[..., Lab]) -> None:
    """No import of the package in the project: the celery command installs the guard where guard_store is set;
    two beats make one execution a due time."""
    from celery_guard.testing.processes import BeatProcess

    it = lab()
    (it.folder / "plainapp.py").write_text(
        """
import os
from celery import Celery
app = Celery("plainapp", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
app.conf.guard_store = os.environ["STORE"]
@app.task(name="plainapp.tick")
def tick(): pass
app.conf.beat_schedule = {"t": {"task": "plainapp.tick", "schedule": 1.0, "options": {"guard": {"overlap": "skip"}}}}
"""
    )
    worker = WorkerProcess(app="plainapp", node="P", env=it.env, cwd=it.folder, folder=it.folder)
    beats = [
        BeatProcess(
            app="plainapp", node=f"b{n}", env=it.env, cwd=it.folder, folder=it.folder, args=("-s", f"b{n}.db")
        )
        for n in (1, 2)
    ]
    try:
        worker.start().wait_ready()
        for beat in beats:
            beat.start()
        wait_until(lambda: len(it.executions()) >= 8, 40, "eight ticks")
    finally:
        for process in (worker, *beats):
            process.close()
    ticks = it.executions()
    assert {e.source for e in ticks} == {"beat"}
    assert len({e.scheduled_at for e in ticks}) == len(ticks)  # one execution a due time
    assert all("plainapp.tick@t:" in e.key for e in ticks)
    assert max(e.triggers for e in ticks) >= 1


def test_the_hold_on_visibility_knows_prefixes_and_priorities(lab: Callable[..., Lab]) -> None:
    it = lab(visibility=3)
    it.app_text(
        """
app.conf.broker_transport_options.update(global_keyprefix="pre-", queue_order_strategy="priority",
                                         priority_steps=[0, 3, 6, 9])
"""
    )
    it.worker("A", concurrency=2)
    it.run("slow.apply_async((1, 7), priority=6); slow.apply_async((2, 0.1), priority=0, countdown=11)")
    it.bodies.wait_for("start", n=1)
    b = it.worker("B")
    it.bodies.wait_for("end", n=1, timeout=30)
    it.bodies.wait_for("end", n=2, timeout=30)
    assert "received" not in b.log
    assert it.bodies.count("start") == 2
