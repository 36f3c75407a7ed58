"""A Django project whose store is its database, for the tests with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from celery_guard.testing.groups import base_environment
from celery_guard.testing.servers.postgres import PostgresServer

from .lab import ROOT, Lab

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


def admin(server: PostgresServer) -> Any:
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
