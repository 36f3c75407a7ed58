"""How long Redis keeps what a lock says once nobody holds it."""

from __future__ import annotations

import pytest

from celery_guard.core.contract import Acquired, Finish, Trigger
from celery_guard.core.states import State
from celery_guard.testing.servers import RedisServer

redis = pytest.importorskip("redis")

from celery_guard.stores.redis import RedisStore  # noqa: E402

pytestmark = pytest.mark.real

WEEK = 7 * 86_400_000


def test_a_free_lock_is_kept_for_as_long_as_it_is_closed(redis_server: RedisServer) -> None:
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    store = RedisStore(redis_server.url)
    trigger = Trigger(
        key="one", task="t", lock_key="lock", trigger_id="one", fingerprint="", message="", throttle=2 * WEEK
    )
    held = store.begin(trigger, owner="mine/1").answer
    assert isinstance(held, Acquired)
    (name,) = client.keys("*:l:lock")
    assert client.pttl(name) == -1  # it does not go while it is held
    store.finish(Finish(lease=held.lease, state=State.SUCCEEDED))
    store.close()
    assert 2 * WEEK - 60_000 < client.pttl(name) <= 2 * WEEK
