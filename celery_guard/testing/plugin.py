"""Pytest fixtures: real servers for a session, and pytest-celery over processes instead of containers.

Opt in from a ``conftest.py``::

    pytest_plugins = ["celery_guard.testing.plugin"]

(Not with ``-p``: of two fixtures of one name that of the plugin loaded later wins, and ``-p`` comes early.)

A test that needs a server which is not there is skipped with the reason. ``CELERY_GUARD_REQUIRE_SERVERS=1``
makes it fail: where all servers are meant to be, none goes untested unseen. ``CELERY_GUARD_TEST_DOCKER=1``
runs pytest-celery in containers, as it is shipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from celery_guard.testing.bodylog import BodyLog
from celery_guard.testing.servers import (
    MariaDBServer,
    PostgresServer,
    RabbitMQServer,
    RedisServer,
    ServerProcess,
    ValkeyServer,
)

REQUIRE_ENV = "CELERY_GUARD_REQUIRE_SERVERS"
DOCKER_ENV = "CELERY_GUARD_TEST_DOCKER"

S = TypeVar("S", bound=ServerProcess)


def need(kind: type[S]) -> type[S]:
    """Return ``kind`` if it can be started here. Else skip the test; fail it where servers are required."""
    reason = kind.available()
    if reason is None:
        return kind
    if os.environ.get(REQUIRE_ENV) == "1":
        pytest.fail(f"{REQUIRE_ENV}=1, but: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis for the whole session. A test that stops or kills a server starts its own."""
    with need(RedisServer)() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    """A Valkey for the whole session."""
    with need(ValkeyServer)() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL for the whole session."""
    with need(PostgresServer)() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    """A MariaDB for the whole session."""
    with need(MariaDBServer)() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMQServer]:
    """A RabbitMQ for the whole session."""
    with need(RabbitMQServer)() as server:
        yield server


@pytest.fixture
def body_log(tmp_path: Path) -> BodyLog:
    """A log for task bodies; give a worker its ``env``."""
    return BodyLog(tmp_path / "bodies.jsonl")


@pytest.fixture(scope="session")
def docker_client() -> Iterator[Any]:
    """What pytest-celery starts its nodes with: processes of this machine, or Docker if so chosen."""
    pytest.importorskip("pytest_celery")
    from celery_guard.testing import pytest_celery_mends as mends

    with pytest.MonkeyPatch.context() as patch:
        mends.leave_lazy_objects_alone(patch)
        if os.environ.get(DOCKER_ENV) == "1":
            yield pytest.importorskip("docker").from_env()
            return
        from celery_guard.testing.local_client import LocalDockerClient

        mends.speak_to_this_machine(patch)
        client = LocalDockerClient()
        yield client
        client.close()
