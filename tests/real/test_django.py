"""A Django project on the database store: real workers, a real PostgreSQL, connections cut under a body."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_guard.testing.groups import base_environment
from celery_guard.testing.processes import wait_until
from celery_guard.testing.servers.postgres import PostgresServer

from .lab import ROOT, Lab

pytestmark = pytest.mark.real

SETTINGS = """
SECRET_KEY = "tests-only"
INSTALLED_APPS = ["celery_guard.contrib.django"]
DATABASES = {{"default": {database!r}}}
USE_TZ = True
CELERY_TASK_IGNORE_RESULT = False
"""

BODIES = """
from django.db import connection, transaction
@task(lease=4)
def writes(self, n, seconds):
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS business (n integer)")
            cursor.execute("INSERT INTO business VALUES (%s)", [n])
            cursor.execute("SELECT pg_backend_pid()")
            log("start", n=n, backend=cursor.fetchone()[0])
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(0.1)
                self.guard.check()
        log("body", n=n)
    log("end", n=n)
    return n
"""


def project(folder: Path, database: dict[str, Any]) -> dict[str, str]:
    """Write settings, migrate; return the environment of the project's processes."""
    (folder / "labsettings.py").write_text(SETTINGS.format(database=database))
    env = {"DJANGO_SETTINGS_MODULE": "labsettings"}
    path = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "django", "migrate", "-v0"],
        env={**base_environment(), **env, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return env


@pytest.fixture
def django_lab(lab: Callable[..., Lab], tmp_path: Path, postgres_server: PostgresServer) -> Lab:
    pytest.importorskip("psycopg")
    with _admin(postgres_server) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    env = project(tmp_path, dict(postgres_server.django))
    it = lab(store="django://default", env=env)
    it.app_text(BODIES)
    return it


def _admin(server: PostgresServer) -> Any:
    import psycopg

    entry = server.django
    return psycopg.connect(
        host=str(entry["HOST"]),
        port=int(str(entry["PORT"])),
        user=str(entry["USER"]),
        password=str(entry.get("PASSWORD") or ""),
        dbname=str(entry["NAME"]),
        autocommit=True,
    )


def counts(it: Lab) -> str:
    return it.run("print(sorted((str(s), n) for (t, s), n in store_of(app).counts().items()))")


def test_the_guards_connections_are_cut_under_a_body(
    django_lab: Lab, postgres_server: PostgresServer
) -> None:
    it = django_lab
    it.worker("A")
    with _admin(postgres_server) as admin:

        def backends() -> set[int]:
            rows = admin.execute(
                "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            return {row[0] for row in rows}

        it.run("open('id', 'w').write(writes.apply_async((1, 7)).id)")
        own = it.bodies.wait_for("start", n=1)[0]["backend"]
        wait_until(lambda: len(backends()) >= 3, 10, "body, heartbeat and dispatcher to be connected")
        before = len(backends())
        for _ in range(2):
            cut = backends() - {own}
            for pid in cut:
                admin.execute("SELECT pg_terminate_backend(%s)", [pid])
            wait_until(lambda gone=cut: not (backends() & gone), 10, "the cut connections to be gone")
            wait_until(lambda: len(backends()) >= 2, 20, "heartbeat or dispatcher to be back")
        it.bodies.wait_for("end", n=1, timeout=30)
        assert it.run("print(app.AsyncResult(open('id').read()).get(timeout=20))") == "1"
        assert admin.execute("SELECT n FROM business").fetchall() == [(1,)]
        assert it.bodies.count("start", n=1) == 1
        it.run("writes.apply_async((2, 0.1)).get(timeout=30)")
        assert len(backends()) <= before


def test_a_killed_worker_is_replaced_on_the_database_store(
    django_lab: Lab, postgres_server: PostgresServer
) -> None:
    it = django_lab
    a = it.worker("A")
    it.run("writes.apply_async((1, 3))")
    it.bodies.wait_for("start", n=1)
    a.sigkill_group()
    it.worker("B")
    it.bodies.wait_for("end", n=1, timeout=40)
    assert it.bodies.count("start") == 2
    with _admin(postgres_server) as admin:
        assert admin.execute("SELECT n FROM business").fetchall() == [(1,)]
    wait_until(lambda: counts(it) == "[('succeeded', 1)]", 10, "one succeeded execution")


def test_a_publish_in_a_transaction_waits_for_commit(django_lab: Lab) -> None:
    it = django_lab
    it.app_text(
        BODIES
        + """
@task(key="{n}", unique_for="1h")
def keyed(self, n): log("keyed", n=n); return n
"""
    )
    code = """
from django.db import transaction
with transaction.atomic():
    kept = keyed.delay_on_commit(1)
    assert kept.id and store_of(app).counts() == {}, store_of(app).counts()
try:
    with transaction.atomic():
        gone = keyed.apply_async_on_commit((2,))
        raise KeyError
except KeyError: pass
states = sorted((t, str(s)) for t, s in store_of(app).counts())
assert states == [("labapp.keyed", "pending")], states
open("id", "w").write(kept.id)
"""
    it.run(code)
    it.worker("A")
    assert it.run("print(app.AsyncResult(open('id').read()).get(timeout=20))") == "1"
    assert it.bodies.count("keyed") == 1
