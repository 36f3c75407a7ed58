"""What is compared: the same two bodies, declared in different ways.

Peers are set up in their cheapest sound form: one lock per argument, no waiting, no renewal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.places import LOCKS, Places

#: Kinds of bodies and how long each sleeps, in seconds.
KINDS = {"no-op": 0.0, "5 ms": 0.005}

Declare = Callable[[Any, Places, str, float], Any]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to run a task. Variants of a ``family`` share an application and a worker, which has the
    family's store."""

    name: str
    family: str
    declare: Declare

    @property
    def queue(self) -> str:
        """The variant's own queue."""
        return f"bench-{self.family}"

    def task_name(self, kind: str) -> str:
        """Return the name of the task of a kind of body."""
        return f"bench.{self.name}.{kind}".replace(" ", "")


def _body(seconds: float) -> Callable[[int], int]:
    def body(n: int) -> int:
        if seconds:
            time.sleep(seconds)
        return n

    return body


def _plain(app: Any, places: Places, name: str, seconds: float) -> Any:
    return app.task(name=name, acks_late=True)(_body(seconds))


def _singleton(app: Any, places: Places, name: str, seconds: float) -> Any:
    from celery_singleton import Singleton  # type: ignore[import-untyped]

    app.conf.singleton_backend_url = places.url(LOCKS)
    return app.task(name=name, base=Singleton, acks_late=True, lock_expiry=60)(_body(seconds))


def _once(app: Any, places: Places, name: str, seconds: float) -> Any:
    from celery_once import QueueOnce  # type: ignore[import-untyped]

    app.conf.ONCE = {
        "backend": "celery_once.backends.Redis",
        "settings": {"url": places.url(LOCKS), "default_timeout": 60},
    }
    return app.task(name=name, base=QueueOnce, acks_late=True)(_body(seconds))


def _redis_lock(app: Any, places: Places, name: str, seconds: float) -> Any:
    import redis
    import redis_lock  # type: ignore[import-untyped]

    inner = _body(seconds)
    clients: list[Any] = []

    def body(n: int) -> int:
        if not clients:  # after the fork
            clients.append(redis.Redis.from_url(places.url(LOCKS)))
        lock = redis_lock.Lock(clients[0], f"{name}:{n}", expire=60)
        if not lock.acquire(blocking=False):
            raise RuntimeError("the lock is held")
        try:
            return inner(n)
        finally:
            lock.release()

    return app.task(name=name, acks_late=True)(body)


def _guarded(**options: Any) -> Declare:
    def declare(app: Any, places: Places, name: str, seconds: float) -> Any:
        from celery_guard import Guard, GuardedTask

        return app.task(name=name, base=GuardedTask, guard=Guard(**options))(_body(seconds))

    return declare


_allow = _guarded(overlap="allow")
_skip = _guarded(overlap="skip", scope="{n}")

BASE = "plain"
AGAIN = "plain again"

#: The first is what all are compared with; the second is the same, and its spread is what chance does.
VARIANTS = (
    Variant(name=BASE, family="bare", declare=_plain),
    Variant(name=AGAIN, family="bare", declare=_plain),
    Variant(name="celery-singleton", family="bare", declare=_singleton),
    Variant(name="celery-once", family="bare", declare=_once),
    Variant(name="python-redis-lock", family="bare", declare=_redis_lock),
    Variant(name="guard redis allow", family="redis", declare=_allow),
    Variant(name="guard redis skip", family="redis", declare=_skip),
    Variant(name="guard postgres allow", family="postgres", declare=_allow),
    Variant(name="guard postgres skip", family="postgres", declare=_skip),
    Variant(name="guard sqlite allow", family="sqlite", declare=_allow),
    Variant(name="guard sqlite skip", family="sqlite", declare=_skip),
)
