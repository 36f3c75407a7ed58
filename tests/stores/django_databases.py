"""Databases for the tests of the Django store: SQLite in a file, and servers that the session's fixtures start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_guard.core.contract import Trigger

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django_settings")

django = pytest.importorskip("django")
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402

#: The databases that the store supports, by the alias they get.
ALIASES = ("sqlite", "postgres", "mariadb")


def _configured(name: str, request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    if name == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(folder / "guard.sqlite3"),
            "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"},
        }
    driver = {"postgres": "psycopg", "mariadb": "pymysql"}[name]
    module = pytest.importorskip(driver)
    if name == "mariadb":
        module.install_as_MySQLdb()
    return dict(request.getfixturevalue(f"{name}_server").django)


def add(alias: str, settings: dict[str, Any]) -> None:
    """Give Django another database."""
    both = connections.configure_settings({"default": {}, alias: settings})
    connections.settings[alias] = both[alias]


def remove(alias: str) -> None:
    """Close this thread's connection and forget the alias."""
    if alias in connections.settings:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


def migrated(name: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Give an alias of this name, with the app's tables."""
    add(name, _configured(name, request, folder))
    call_command("migrate", "celery_guard", database=name, verbosity=0)
    yield name
    remove(name)


def trigger(name: str = "one", **options: Any) -> Trigger:
    """A trigger as these tests send it."""
    given = {
        "key": name,
        "task": "task",
        "lock_key": "lock",
        "trigger_id": f"id-{name}",
        "fingerprint": "0" * 64,
        "message": f"message of {name}",
    }
    return Trigger(**(given | options))


def wipe(alias: str) -> None:
    """Empty the app's tables."""
    from celery_guard.contrib.django import models

    for model in (models.Execution, models.Lock, models.Dispatcher, models.Counter):
        model._default_manager.using(alias).all().delete()


class Opener:
    """Opens the store in another process."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.settings = dict(connections.settings[alias])

    def __call__(self) -> Any:
        from celery_guard.contrib.django.store import DjangoStore

        if "mysql" in self.settings["ENGINE"]:
            pytest.importorskip("pymysql").install_as_MySQLdb()
        add(self.alias, self.settings)
        return DjangoStore(self.alias)


def unreachable(alias: str) -> Any:
    """Return a store on a database of the alias' kind whose server is not there."""
    from celery_guard.contrib.django.store import DjangoStore

    gone = {"NAME": os.path.join(os.devnull, "no", "file")} if alias == "sqlite" else {"PORT": "9"}
    add("gone", {**connections.settings[alias], **gone})
    return DjangoStore("gone")
