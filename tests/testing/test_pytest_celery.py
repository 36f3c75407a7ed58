"""pytest-celery as shipped, over processes: its fixtures, nodes and waits on Redis, Valkey and RabbitMQ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from celery_guard.testing import plugin
from celery_guard.testing.servers import RabbitMQServer, RedisServer, ServerProcess, ValkeyServer

pytest_celery = pytest.importorskip("pytest_celery")

from pytest_celery import (  # noqa: E402 - after the question whether it is there
    CELERY_REDIS_BACKEND,
    CeleryTestSetup,
    CeleryWorkerContainer,
    RedisContainer,
    ping,
)

pytestmark = pytest.mark.real

IN_DOCKER = os.environ.get(plugin.DOCKER_ENV) == "1"
BROKERS = {
    "redis": "celery_redis_broker",
    "valkey": "celery_redis_broker",
    "rabbitmq": "celery_rabbitmq_broker",
}


class ValkeyContainer(RedisContainer):  # type: ignore[misc]
    """Valkey speaks as Redis does: only the image differs."""

    @classmethod
    def image(cls) -> str:
        return "valkey/valkey:8"

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        return ["valkey-server", *super().command(*args, **kwargs)[1:]]


class Asleep:
    """A proxy as Django's settings are: asked for its class, it makes what it stands for, and cannot."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("woken")


# In a list, where no one but the garbage collector looks: every tear-down below passes it.
ASLEEP = [Asleep()]


@pytest.fixture(params=list(BROKERS))
def broker_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    if not IN_DOCKER:
        servers: dict[str, type[ServerProcess]] = {
            "redis": RedisServer,
            "valkey": ValkeyServer,
            "rabbitmq": RabbitMQServer,
        }
        plugin.need(servers[kind])
    return kind


@pytest.fixture
def default_redis_broker_cls(broker_kind: str) -> type[RedisContainer]:
    return ValkeyContainer if broker_kind == "valkey" else RedisContainer


@pytest.fixture
def celery_broker(broker_kind: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    broker = request.getfixturevalue(BROKERS[broker_kind])
    yield broker
    broker.teardown()


@pytest.fixture(params=[CELERY_REDIS_BACKEND])
def celery_backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    backend = request.getfixturevalue(request.param)
    yield backend
    backend.teardown()


@pytest.fixture
def default_worker_command(default_worker_container_cls: type[CeleryWorkerContainer]) -> list[str]:
    command: list[str] = default_worker_container_cls.command(
        "--without-mingle", "--without-gossip", "--without-heartbeat", "-c", "1"
    )
    return command


def test_a_task_runs_on_a_real_worker(celery_setup: CeleryTestSetup) -> None:
    assert celery_setup.ready(ping=True, control=True)
    assert ping.s().apply_async().get(timeout=20) == "pong"
    worker = celery_setup.worker
    worker.assert_log_exists("succeeded in")
    assert worker.hostname() in worker.logs()
    answers = celery_setup.app.control.inspect(destination=[worker.hostname()], timeout=5, limit=1).ping()
    assert answers == {worker.hostname(): {"ok": "pong"}}


def test_a_killed_worker_is_seen_and_starts_again(celery_setup: CeleryTestSetup) -> None:
    worker = celery_setup.worker
    assert worker.container.status == "running"
    worker.kill()
    assert worker.container.status == "exited"
    assert worker.container.attrs["State"]["ExitCode"] == 137

    result = ping.s().apply_async()
    worker.restart()
    assert worker.container.status == "running"
    assert result.get(timeout=20) == "pong"


def test_a_worker_asked_to_end_ends_warmly(celery_setup: CeleryTestSetup) -> None:
    worker = celery_setup.worker
    worker.kill(signal="SIGTERM", reload_container=False)
    worker.wait_for_log("worker: Warm shutdown (MainProcess)")
    assert worker.container._container.wait(timeout=20)["StatusCode"] == 0
    worker.container.reload()
    assert worker.container.status == "exited"


def test_a_broker_restarts_at_its_place(celery_setup: CeleryTestSetup) -> None:
    before = celery_setup.broker.config()["host_url"]
    celery_setup.broker.restart()
    if not IN_DOCKER:
        assert celery_setup.broker.config()["host_url"] == before
    assert ping.s().apply_async().get(timeout=30) == "pong"


def test_each_test_has_an_empty_broker(celery_setup: CeleryTestSetup, broker_kind: str) -> None:
    # A broker may be the one that tests before had, with what they left; this worker saw none of that.
    assert "received" not in celery_setup.worker.logs()
