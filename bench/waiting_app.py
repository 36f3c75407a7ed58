"""One task of which one runs at a time; the first one holds the lock until it is told to let go."""

from __future__ import annotations

import time

import redis
from celery import Celery

from bench.places import BROKER, LOCKS, STORE, Places
from celery_guard import Guard, GuardedTask

GATE = "bench-gate"

places = Places.from_env()
app = Celery("bench-waiting", broker=places.url(BROKER), set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    guard_store=places.url(STORE),
    task_default_queue="bench-waiting",
    task_ignore_result=True,
    worker_hijack_root_logger=False,
)


@app.task(name="bench.waiting", base=GuardedTask, guard=Guard(overlap="queue", scope="{lock}", lease=30))
def waiting(lock: str, number: int) -> None:
    """Do nothing; number 0 holds the lock until the gate opens."""
    if number == 0:
        with redis.Redis.from_url(places.url(LOCKS)) as gate:
            while not gate.get(GATE):
                time.sleep(0.01)
