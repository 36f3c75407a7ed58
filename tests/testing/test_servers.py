"""Every server starts, answers, keeps its data over restart and SIGKILL, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_guard.testing import plugin, proctree
from celery_guard.testing.servers import (
    MariaDBServer,
    PostgresServer,
    RabbitMQServer,
    RedisServer,
    ServerProcess,
    ServerStartError,
    ValkeyServer,
)
from celery_guard.testing.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
QUICK: list[type[ServerProcess]] = [RedisServer, ValkeyServer, PostgresServer, MariaDBServer]


def test_servers_load_neither_celery_nor_a_driver() -> None:
    code = (
        "import sys, celery_guard.testing.servers, celery_guard.testing.processes;"
        "heavy = {'celery', 'kombu', 'django', 'redis', 'psycopg', 'pymysql', 'pytest'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- data: how each kind is written and read ---------------------------------------------------


def _redis(server: Any) -> Any:
    redis = pytest.importorskip("redis")
    return redis.Redis.from_url(server.url)


def _sql(server: Any) -> Any:
    if isinstance(server, PostgresServer):
        return pytest.importorskip("psycopg").connect(server.url, autocommit=True)
    where = server.django
    return pytest.importorskip("pymysql").connect(
        host=where["HOST"],
        port=int(where["PORT"]),
        user=where["USER"],
        password=where["PASSWORD"],
        database=where["NAME"],
        autocommit=True,
    )


def _write(server: Any, value: str) -> None:
    if isinstance(server, RedisServer):
        _redis(server).set("kept", value)
        return
    with closing(_sql(server)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS kept (value varchar(40))")
        cursor.execute("INSERT INTO kept VALUES (%s)", (value,))


def _read(server: Any) -> list[str]:
    if isinstance(server, RedisServer):
        value = _redis(server).get("kept")
        return [] if value is None else [value.decode()]
    with closing(_sql(server)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT value FROM kept")
        return [row[0] for row in cursor.fetchall()]


def _started(kind: type[ServerProcess]) -> Any:
    plugin.need(kind)
    server: Any = kind(appendonly=True) if issubclass(kind, RedisServer) else kind()
    return server


@pytest.mark.real
@pytest.mark.parametrize("kind", QUICK, ids=lambda kind: kind.kind)
def test_a_server_keeps_its_data_and_address(kind: type[ServerProcess]) -> None:
    with _started(kind) as server:
        url, first = server.url, server.pid
        _write(server, "one")
        server.restart()
        assert (server.url, _read(server)) == (url, ["one"])
        assert server.pid != first

        seen = [server.pid, *proctree.descendants(server.pid)]
        server.kill()
        assert not set(seen) & set(proctree.living())
        assert not server.running
        assert not server.answers()
        server.start()
        assert (server.url, _read(server)) == (url, ["one"])
    assert not server.folder.exists()
    assert not proctree.alive(server.pid)
    with pytest.raises(ServerStartError, match="closed"):
        server.start()


@pytest.mark.real
@pytest.mark.parametrize("kind", QUICK, ids=lambda kind: kind.kind)
def test_a_paused_server_is_silent_and_goes_on(kind: type[ServerProcess]) -> None:
    with _started(kind) as server:
        _write(server, "one")
        server.pause()
        assert server.running
        assert not server.answers()
        server.resume()
        assert server.answers()
        assert _read(server) == ["one"]
        server.pause()
        server.stop()
        assert not server.running


@pytest.mark.real
@pytest.mark.parametrize("kind", [RedisServer, ValkeyServer], ids=lambda kind: kind.kind)
def test_options_of_redis_reach_it(kind: type[RedisServer]) -> None:
    plugin.need(kind)
    with kind(args=["--maxmemory-policy", "allkeys-lru", "--port", "1"], save="60 1") as server:
        client = _redis(server)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}
        assert client.config_get("save") == {"save": "60 1"}
        assert server.url_of(3) == f"redis://127.0.0.1:{server.port}/3"
        client.set("kept", "in a snapshot")
        server.restart()  # with `save`, stopping writes one
        assert _read(server) == ["in a snapshot"]


@pytest.mark.real
def test_without_persistence_a_redis_forgets(redis_server: RedisServer) -> None:
    with RedisServer() as server:
        assert server.port != redis_server.port
        _write(server, "one")
        server.restart()
        assert _read(server) == []


@pytest.mark.real
@pytest.mark.parametrize("fixture", ["redis_server", "valkey_server", "postgres_server", "mariadb_server"])
def test_session_servers_answer(fixture: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(fixture)
    value = uuid.uuid4().hex
    _write(server, value)
    assert value in _read(server)


@pytest.mark.real
@pytest.mark.parametrize("kind", [PostgresServer, MariaDBServer], ids=lambda kind: kind.kind)
def test_django_connects(kind: type[Any], request: pytest.FixtureRequest) -> None:
    pytest.importorskip("django")
    server = request.getfixturevalue(f"{kind.kind}_server")
    code = (
        "import pymysql; pymysql.version_info = (2, 2, 1, 'final', 0); pymysql.install_as_MySQLdb()\n"
        "from django.conf import settings\n"
        f"settings.configure(DATABASES={{'default': {server.django!r}}})\n"
        "from django.db import connection\n"
        "with connection.cursor() as cursor:\n"
        "    cursor.execute('SELECT 41 + 1'); print(cursor.fetchone()[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("42", 0), done.stderr


@pytest.mark.real
def test_a_server_that_cannot_start_says_why() -> None:
    plugin.need(RedisServer)
    server = RedisServer(args=["--no-such-option", "1"])
    with pytest.raises(ServerStartError, match="no-such-option"):
        server.start()
    server.close()
    assert not server.folder.exists()


@pytest.mark.real
def test_a_taken_port_is_not_insisted_on(redis_server: RedisServer) -> None:
    with RedisServer() as first:
        second = RedisServer()
        second.port = first.port
        with second:
            assert second.port != first.port
            assert second.answers()


@pytest.mark.real
def test_rabbitmq_keeps_queues_over_restart_and_kill(rabbitmq_server: RabbitMQServer) -> None:
    kombu = pytest.importorskip("kombu")
    name = f"kept-{uuid.uuid4().hex}"

    def with_queue(act: Callable[[Any], Any]) -> Any:
        with (
            kombu.Connection(rabbitmq_server.url) as connection,
            closing(connection.SimpleQueue(name)) as queue,
        ):
            return act(queue)

    with_queue(lambda queue: queue.put("first"))
    rabbitmq_server.restart()
    assert with_queue(len) == 1

    below = [rabbitmq_server.pid, *proctree.descendants(rabbitmq_server.pid)]
    rabbitmq_server.kill()
    assert not set(below) & set(proctree.living())
    assert not rabbitmq_server.answers()
    rabbitmq_server.start()
    assert with_queue(lambda queue: queue.get(timeout=10).payload) == "first"

    rabbitmq_server.reset()
    assert name not in rabbitmq_server.control("list_queues", "name")


# -- what is not there, and what would be left --------------------------------------------------


class Missing(RedisServer):
    @classmethod
    def available(cls) -> str | None:
        return "no such server"


def test_a_missing_server_skips_or_where_required_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(plugin.REQUIRE_ENV, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no such server"):
        plugin.need(Missing)
    monkeypatch.setenv(plugin.REQUIRE_ENV, "1")
    with pytest.raises(pytest.fail.Exception, match="no such server"):
        plugin.need(Missing)
    with pytest.raises(ServerStartError, match="no such server"):
        Missing()


@pytest.mark.real
@pytest.mark.parametrize("kind", QUICK, ids=lambda kind: kind.kind)
def test_nothing_outlives_a_test_run_that_is_killed(kind: type[ServerProcess]) -> None:
    plugin.need(kind)
    code = (
        f"from celery_guard.testing.servers import {kind.__name__} as Kind\n"
        "server = Kind().start(); server.pause()\n"
        "print(server.pid, server.folder, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        pid, folder = run.stdout.readline().split()
        below = [int(pid), *proctree.descendants(int(pid))]
        run.kill()
    wait_until(lambda: not set(below) & set(proctree.living()), 20, "the server to end")
    wait_until(lambda: not Path(folder).exists(), 20, "its folder to be removed")


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("kind", [PostgresServer, MariaDBServer], ids=lambda kind: kind.kind)
def test_run_by_root_a_server_has_no_rights_of_root(kind: type[Any], request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(f"{kind.kind}_server")
    assert server.account is not None
    status = Path(f"/proc/{server.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert set(fields["Uid"].split()) == {str(server.account[0])}
    assert fields["Groups"].split() in ([], [str(server.account[1])])
    assert server.folder.stat().st_mode & 0o077 == 0
