"""Where the Redis store connects to, and which servers it refuses or warns about."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

redis = pytest.importorskip("redis")

from celery_guard.core.errors import StoreConfigurationError, StoreUnavailableError  # noqa: E402
from celery_guard.stores.redis import RedisStore  # noqa: E402
from celery_guard.stores.redis.address import client, masked  # noqa: E402
from celery_guard.testing.servers import RedisServer  # noqa: E402
from celery_guard.testing.servers.ports import free_port  # noqa: E402
from celery_guard.testing.waiting import wait_until  # noqa: E402

DURABLE = ["--appendonly", "yes"]


class ListeningServer(RedisServer):
    """Started as soon as it listens: it does not answer just anybody."""

    def answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1):
                return True
        except OSError:
            return False


class Sentinel(ListeningServer):
    """Watches ``master`` under the name ``main``. A sentinel needs a file that it may write."""

    ready_prompt = "+monitor master"

    def __init__(self, master: int, args: Sequence[str] = ()) -> None:
        super().__init__(args=args)
        self.master = master

    def argv(self) -> list[str]:
        program = self.program()
        assert program is not None
        conf = self.folder / "sentinel.conf"
        conf.write_text(
            f"port {self.port}\nbind {self.host}\ndir {self.folder}\n"
            f"sentinel monitor main {self.host} {self.master} 1\nsentinel down-after-milliseconds main 1000\n"
            "sentinel failover-timeout main 3000\n"
        )
        return [program, str(conf), "--sentinel"]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    if reason := RedisServer.available():
        pytest.skip(reason)
    with RedisServer(appendonly=True) as started:
        yield started


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/2", "redis://host:6379/2"),
        ("redis://:s3cret@host/0", "redis://:***@host/0"),
        ("redis://user:s3cret@host/0?socket_timeout=2", "redis://user:***@host/0?socket_timeout=2"),
        ("redis://user:s3:cr@et@host/0", "redis://user:***@host/0"),
        ("unix:///tmp/s.sock?password=s3cret&db=1", "unix:///tmp/s.sock?password=***&db=1"),
        (
            "sentinel://:s3cret@a:1;b:2/main?sentinel_password=s3cret",
            "sentinel://:***@a:1;b:2/main?sentinel_password=***",
        ),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert masked(url) == shown
    if "sentinel" not in url:
        assert "s3" not in repr(RedisStore(url))


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "redis://host:port/0",
        "redis://host/0?socket_timeout=soon",
        "redis://host/0?no_such_option=1",
        "sentinel://host:1",
        "sentinel:///main",
    ],
)
def test_an_unusable_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(StoreConfigurationError):
        RedisStore(url)


def test_a_namespace_with_braces_is_refused() -> None:
    with pytest.raises(StoreConfigurationError):
        RedisStore("redis://host", namespace="{a}")


def test_timeouts_have_defaults_that_the_url_overrides() -> None:
    kwargs = client("redis://host", {}).connection_pool.connection_kwargs
    assert (kwargs["socket_timeout"], kwargs["socket_connect_timeout"]) == (5, 5)
    kwargs = client("redis://host?socket_timeout=1.5", {"socket_connect_timeout": 2}).connection_pool
    assert kwargs.connection_kwargs["socket_timeout"] == 1.5
    assert kwargs.connection_kwargs["socket_connect_timeout"] == 2


@pytest.mark.parametrize(
    ("query", "reqs", "host_name"),
    [
        ("", "required", True),
        ("?ssl_cert_reqs=CERT_NONE", "none", False),
        ("?ssl_cert_reqs=none", "none", False),
        ("?ssl_check_hostname=false", "required", False),
    ],
)
def test_tls_is_checked_unless_the_url_says_otherwise(query: str, reqs: str, host_name: bool) -> None:
    kwargs = client(f"rediss://host{query}", {}).connection_pool.connection_kwargs
    assert kwargs.get("ssl_cert_reqs", "required") == reqs
    assert kwargs["ssl_check_hostname"] is host_name


# --- real servers -------------------------------------------------------------------------------------


@pytest.mark.real
def test_a_sound_server_has_no_warnings(server: RedisServer) -> None:
    assert list(RedisStore(server.url).check()) == []


@pytest.mark.real
def test_eviction_and_no_persistence_are_warned_about() -> None:
    with RedisServer(args=["--maxmemory-policy", "allkeys-lru"]) as own:
        first, second = RedisStore(own.url).check()
    assert "allkeys-lru" in first
    assert "appendonly" in second


@pytest.mark.real
def test_snapshots_are_persistence() -> None:
    with RedisServer(save="60 1") as own:
        assert list(RedisStore(own.url).check()) == []


@pytest.mark.real
def test_a_server_that_forbids_config_is_usable() -> None:
    with RedisServer(args=["--rename-command", "CONFIG", ""]) as own:
        (warning,) = RedisStore(own.url).check()
        assert "CONFIG is forbidden" in warning


@pytest.mark.real
def test_a_cluster_is_refused() -> None:
    with RedisServer(args=["--cluster-enabled", "yes"]) as own:
        store = RedisStore(own.url)
        with pytest.raises(StoreConfigurationError, match="Cluster"):
            store.check()


@pytest.mark.real
def test_a_replica_is_refused(server: RedisServer) -> None:
    with RedisServer(args=["--replicaof", server.host, str(server.port)]) as own:
        store = RedisStore(own.url)
        with pytest.raises(StoreConfigurationError, match="replica"):
            store.check()


@pytest.mark.real
def test_wrong_password_wrong_database_and_missing_rights_are_configuration(server: RedisServer) -> None:
    with ListeningServer(args=["--requirepass", "right", *DURABLE]) as own:
        place = f"{own.host}:{own.port}"
        for url in (f"redis://{place}/0", f"redis://:wrong@{place}/0", f"redis://:right@{place}/99"):
            with pytest.raises(StoreConfigurationError) as caught:
                RedisStore(url).check()
            assert "right@" not in str(caught.value)
        assert list(RedisStore(f"redis://:right@{place}/3").check()) == []
        admin = redis.Redis(host=own.host, port=own.port, password="right")
        admin.execute_command("ACL", "SETUSER", "some", "on", ">pw", "~other:*", "+@all", "-eval", "-script")
        with pytest.raises(StoreConfigurationError, match="let us in"):
            RedisStore(f"redis://some:pw@{place}/0").check()
        with pytest.raises(StoreUnavailableError):
            RedisStore(f"redis://:wrong@{place}/0").now()


@pytest.mark.real
def test_a_user_with_rights_on_the_namespace_alone_is_enough(server: RedisServer) -> None:
    admin = redis.Redis(host=server.host, port=server.port)
    rights = [
        "~{celery_guard}*",
        "-@all",
        "+@read",
        "+@write",
        "+@connection",
        "+@scripting",
        "+info",
        "+time",
    ]
    admin.execute_command("ACL", "SETUSER", "guard", "on", ">pw", *rights)
    store = RedisStore(f"redis://guard:pw@{server.host}:{server.port}/0")
    store.check()
    assert store.get("nothing") is None
    with pytest.raises(StoreUnavailableError):
        RedisStore(f"redis://guard:pw@{server.host}:{server.port}/0", namespace="other").get("nothing")


@pytest.mark.real
def test_no_server_is_unavailable() -> None:
    store = RedisStore(f"redis://:hidden@127.0.0.1:{free_port()}/0")
    for call in (store.check, store.now):
        with pytest.raises(StoreUnavailableError) as caught:
            call()
        assert "hidden" not in str(caught.value)
        assert caught.value.__cause__ is not None


@pytest.mark.real
@pytest.mark.parametrize("form", ["unix://{path}?db=1", "redis+socket://{path}?virtual_host=1"])
def test_unix_sockets(form: str, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with RedisServer(args=["--unixsocket", str(path), *DURABLE]) as own:
        store = RedisStore(form.format(path=path))
        assert list(store.check()) == []
        store.reserve(_trigger(), resend_after=1)
        assert redis.Redis(port=own.port, db=1).exists("{celery_guard}:x:k") == 1


@pytest.mark.real
def test_tls(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    command = ["openssl", *made.split(), "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    port = free_port()
    files = ["--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-ca-cert-file", str(cert)]
    with RedisServer(args=["--tls-port", str(port), "--tls-auth-clients", "no", *files, *DURABLE]):
        assert list(RedisStore(f"rediss://localhost:{port}/0?ssl_ca_certs={cert}").check()) == []
        assert list(RedisStore(f"rediss://localhost:{port}/0?ssl_cert_reqs=CERT_NONE").check()) == []
        with pytest.raises(StoreUnavailableError, match=r"(?i)certificate"):
            RedisStore(f"rediss://localhost:{port}/0").check()
        with pytest.raises(StoreUnavailableError, match=r"(?i)hostname|IP address"):
            RedisStore(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={cert}").check()


@pytest.mark.real
def test_sentinel_finds_the_master_and_its_successor() -> None:
    with RedisServer() as first, RedisServer(args=["--replicaof", first.host, str(first.port)]) as second:
        wait_until(lambda: _info(second)["master_link_status"] == "up", 20, "the replica to follow")
        with Sentinel(first.port) as sentinel:
            nowhere = free_port()
            url = f"sentinel://{sentinel.host}:{nowhere};{sentinel.host}:{sentinel.port}/main?db=2"
            store = RedisStore(url)
            wait_until(lambda: _knows_replica(sentinel), 30, "the sentinel to know the replica")
            store.check()
            store.reserve(_trigger(), resend_after=1)
            wait_until(lambda: redis.Redis(port=second.port, db=2).dbsize() > 0, 10, "the replica to have it")
            first.kill()
            wait_until(lambda: _info(second)["role"] == "master", 30, "the replica to take over")
            wait_until(lambda: _found(store), 30, "the store to follow")
            store.close()


def _trigger() -> Any:
    from celery_guard.core.contract import Trigger

    return Trigger(key="k", task="t", lock_key="l", trigger_id="i", fingerprint="f", message="m")


def _info(server: RedisServer) -> dict[str, Any]:
    return dict(redis.Redis(port=server.port).info("replication"))


def _knows_replica(sentinel: RedisServer) -> bool:
    return bool(redis.Redis(port=sentinel.port).sentinel_slaves("main"))


def _found(store: RedisStore) -> bool:
    try:
        return store.get("k") is not None
    except StoreUnavailableError:
        return False
