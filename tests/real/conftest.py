"""Fixtures of the tests with real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_guard.testing.plugin import need
from celery_guard.testing.servers.postgres import PostgresServer
from celery_guard.testing.servers.redis import RedisServer

from .django_project import BODIES, admin, project
from .lab import Lab


@pytest.fixture(scope="session")
def lab_redis() -> Iterator[RedisServer]:
    """One Redis for all labs: broker in 0, results in 1, store in 2. Emptied for each."""
    server = need(RedisServer)()
    with server:
        yield server


def _base(server: Any) -> str:
    return str(server.url).rsplit("/", 1)[0]


@pytest.fixture
def lab(
    tmp_path: Path, lab_redis: RedisServer, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Lab]]:
    """Makes a lab on Redis; options as :class:`Lab` has them."""
    labs: list[Lab] = []
    base = _base(lab_redis)
    redis.Redis.from_url(base).flushall()

    def make(**options: Any) -> Lab:
        urls = {"broker": f"{base}/0", "backend": f"{base}/1", "store": f"{base}/2"}
        made = Lab(tmp_path, **{**urls, **options})
        labs.append(made)
        return made

    yield make
    failed = getattr(request.node, "failed", False)
    for made in labs:
        if failed:
            print(made.logs())
        made.close()


@pytest.fixture
def django_lab(lab: Callable[..., Lab], tmp_path: Path, postgres_server: PostgresServer) -> Lab:
    pytest.importorskip("psycopg")
    with admin(postgres_server) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    env = project(tmp_path, dict(postgres_server.django))
    it = lab(store="django://default", env=env)
    it.app_text(BODIES)
    return it


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    outcome: Any = yield
    if outcome.get_result().failed:
        item.failed = True  # type: ignore[attr-defined]


def left(server: RedisServer) -> int:
    """Messages that the broker still has, in the queue or unacknowledged."""
    client = redis.Redis.from_url(_base(server) + "/0")
    return int(client.llen("celery")) + int(client.hlen("unacked"))
