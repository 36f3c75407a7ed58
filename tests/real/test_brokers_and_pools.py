"""Other brokers, other pools: RabbitMQ restarted under a body, and every pool's dispatcher and heartbeat."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from celery_guard.core.states import State
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


def test_a_killed_worker_on_rabbitmq_is_replaced(lab: Callable[..., Lab], rabbitmq_server: RabbitMQServer) -> None:
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
        '''
@task(lease=2)
def beyond(self, n):
    log("start", n=n, attempt=self.guard.attempt)
    for _ in range(60):
        time.sleep(0.1); self.guard.check()
    log("end", n=n); return n
'''
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
        '''
@task(lease=60)
def endless(self, n):
    log("start", n=n)
    if n < 3: time.sleep(60)
    log("end", n=n)
'''
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
