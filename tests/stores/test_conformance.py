"""The conformance suite against the memory store, and the Redis store on Redis and on Valkey.

(Against the Django store: ``test_django_conformance.py``.) The servers are those that the session's fixtures
start. What cannot be started here is skipped with the reason; it fails if ``CELERY_GUARD_REQUIRE_SERVERS=1``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import pytest

from celery_guard.core.clock import Clock, system_clock
from celery_guard.core.contract import Store
from celery_guard.stores.memory import MemoryStore
from celery_guard.testing.conformance import StoreConformance
from celery_guard.testing.servers import RedisServer, ValkeyServer
from celery_guard.testing.servers.ports import free_port

pytestmark = pytest.mark.conformance


class SwitchedClock:
    """The clock of a memory store that lives through a test: the test's where there is one."""

    inner: Clock | None = None

    def __call__(self) -> float:
        return (self.inner or system_clock)()


class TestMemoryStore(StoreConformance):
    """The reference. Connections to it are the object itself: it has no others."""

    rounds: ClassVar[int] = 200
    own_time: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def memory(self) -> None:
        self.clock = SwitchedClock()
        self.shared = MemoryStore(clock=self.clock)

    def connect(self, clock: Clock | None) -> MemoryStore:
        self.clock.inner = clock
        return self.shared

    def wipe(self) -> None:
        self.shared._records.clear()
        self.shared._locks.clear()
        self.shared._finals.clear()
        self.shared._dispatcher = None


# --- Redis and what speaks like it ---------------------------------------------------------------------


def open_redis(url: str, clock: Clock | None = None) -> Store:
    """Return a new Redis store. By name, so that another process can do it."""
    from celery_guard.stores.redis import RedisStore

    return RedisStore(url, clock=clock)


class RedisConformance(StoreConformance):
    """Each test starts with an empty server; FLUSHALL is the store that lost everything."""

    rounds: ClassVar[int] = 40
    kind: ClassVar[type[RedisServer]]
    server: RedisServer

    @pytest.fixture(autouse=True)
    def redis(self, request: pytest.FixtureRequest) -> None:
        pytest.importorskip("celery_guard.stores.redis", reason="the Redis store needs redis-py")
        self.server = request.getfixturevalue(f"{self.kind.kind}_server")

    def connect(self, clock: Clock | None) -> Store:
        return open_redis(self.server.url, clock)

    def opener(self) -> Callable[[], Store]:
        return partial(open_redis, self.server.url)

    def wipe(self) -> None:
        import redis

        client = redis.Redis.from_url(self.server.url)
        client.flushall()
        client.close()

    def restart(self) -> None:
        self.server.restart()  # without persistence: it comes back empty

    def unreachable(self) -> Store:
        return open_redis(f"redis://127.0.0.1:{free_port()}/0")


@pytest.mark.real
class TestRedisStore(RedisConformance):
    kind = RedisServer


@pytest.mark.real
class TestRedisStoreOnValkey(RedisConformance):
    kind = ValkeyServer
