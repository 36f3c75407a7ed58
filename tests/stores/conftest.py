"""Fixtures of the stores' tests: an alias on each database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.stores import django_databases as databases

    yield from databases.migrated(request.param, request, tmp_path_factory.mktemp("database"))


@pytest.fixture
def alias(database: str) -> Iterator[str]:
    from django.db import connections

    from tests.stores import django_databases as databases

    databases.wipe(database)
    yield database
    connections[database].close()


@pytest.fixture
def store(alias: str) -> Iterator[Any]:
    """The store on that alias."""
    from celery_guard.contrib.django.store import DjangoStore

    opened = DjangoStore(alias)
    yield opened
    opened.close()
