"""The servers of one benchmark, and where they are: the same for the publisher and for the workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from celery_guard.testing.servers import PostgresServer, RedisServer, ValkeyServer

ENV = "CELERY_GUARD_BENCH"

#: Numbered databases of the one Valkey.
BROKER, RESULTS, STORE, LOCKS = 0, 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where broker, results, stores and peers' locks are."""

    redis: str
    results: bool
    databases: Mapping[str, Any] = field(default_factory=dict)
    #: families that cannot be measured here, with the reason
    missing: Mapping[str, str] = field(default_factory=dict)

    def url(self, database: int) -> str:
        """Return the URL of a numbered database."""
        return f"{self.redis}/{database}"

    def dumps(self) -> str:
        """Return it as text for the environment of a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def from_env(cls) -> Places:
        """Read :meth:`dumps`' text."""
        return cls(**json.loads(os.environ[ENV]))


def configure_django(databases: Mapping[str, Any]) -> None:
    """Set Django up. By ``settings.configure``, so that Celery's Django fixup, which looks after connections
    around every task, is on for none of the variants."""
    import django
    from django.conf import settings

    if settings.configured:
        return
    settings.configure(
        INSTALLED_APPS=["celery_guard.contrib.django"],
        DATABASES={"default": databases["sqlite"], **databases},
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()


@contextmanager
def serving(*, results: bool, postgres: bool) -> Iterator[Places]:
    """Start the servers; end them, and remove what they wrote, at the end.

    Raises ``ServerStartError`` where there is no Redis of any kind; what else is missing is said in
    :attr:`Places.missing`.
    """
    kind = ValkeyServer if ValkeyServer.available() is None else RedisServer
    with TemporaryDirectory(prefix="guard-bench-") as folder, kind() as redis:
        missing: dict[str, str] = {}
        databases: dict[str, Any] = {
            "sqlite": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(Path(folder) / "guard.sqlite3"),
                "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"},
            }
        }
        server = _postgres(missing) if postgres else None
        try:
            if server is not None:
                databases |= _postgres_databases(server)
            missing |= _prepare(databases)
            yield Places(
                redis=redis.url.rpartition("/")[0], results=results, databases=databases, missing=missing
            )
        finally:
            if server is not None:
                server.close()


def _postgres(missing: dict[str, str]) -> PostgresServer | None:
    reason = PostgresServer.available()
    if reason is None:
        try:
            import psycopg  # noqa: F401
        except ImportError as exc:
            reason = str(exc)
    if reason is not None:
        missing["postgres"] = reason
        return None
    # As it is installed, but for the size of its cache: every commit is on disk before it is answered.
    settings = {"fsync": "on", "shared_buffers": "128MB"}
    return PostgresServer(settings=settings).start()


def _postgres_databases(server: PostgresServer) -> dict[str, Any]:
    """Return three databases: for the workers, and two of different fill for the latencies."""
    import psycopg

    databases = {"postgres": server.django}
    with psycopg.connect(server.url, autocommit=True) as connection:
        for name in ("few", "many"):
            connection.execute(f"CREATE DATABASE guard_{name}")
            databases[name] = {**server.django, "NAME": f"guard_{name}"}
    return databases


def _prepare(databases: Mapping[str, Any]) -> dict[str, str]:
    """Make the store's tables; return what cannot be measured where that fails."""
    try:
        configure_django(databases)
        from django.core.management import call_command

        import celery_guard.contrib.django.store  # noqa: F401 - is it there?

        for alias in databases:
            call_command("migrate", "celery_guard", database=alias, verbosity=0)
    except Exception as exc:  # noqa: BLE001 - whatever it is, the others are measured
        reason = f"{type(exc).__name__}: {exc}"
        return dict.fromkeys(("postgres", "sqlite"), reason)
    return {}
