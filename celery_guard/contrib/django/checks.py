"""System checks: a store that cannot work is said at ``manage.py check``, not at the first task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.db import connections

from .connections import private_to_connection

_VENDORS = frozenset({"postgresql", "mysql", "sqlite"})


@checks.register("celery_guard")
def check_store(
    *, app_configs: Sequence[AppConfig] | None = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Iterable[checks.CheckMessage]:
    """Check the database that ``CELERY_GUARD_STORE`` names. Connects to nothing."""
    url = getattr(settings, "CELERY_GUARD_STORE", None)
    if not isinstance(url, str) or urlsplit(url).scheme != "django":
        return []
    alias = urlsplit(url).netloc or "default"
    if alias not in settings.DATABASES:
        return [
            checks.Error(
                f"CELERY_GUARD_STORE is {url!r}, and DATABASES has no alias {alias!r}.",
                hint=f"DATABASES has {', '.join(sorted(settings.DATABASES)) or 'none'}.",
                id="celery_guard.E001",
            )
        ]
    connection = connections[alias]
    if connection.vendor not in _VENDORS:
        return [
            checks.Error(
                f"CELERY_GUARD_STORE is {url!r}, and {connection.vendor} cannot hold the guard store.",
                hint="Name an alias on PostgreSQL, MariaDB, MySQL or SQLite.",
                id="celery_guard.E002",
            )
        ]
    if private_to_connection(connection.vendor, str(connection.settings_dict["NAME"])):
        return [
            checks.Error(
                f"CELERY_GUARD_STORE is {url!r}, an SQLite database in memory: no other connection sees it.",
                hint="Give the alias a file, or use memory:// in tests.",
                id="celery_guard.E003",
            )
        ]
    return []
