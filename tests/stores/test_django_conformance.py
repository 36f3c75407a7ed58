"""The conformance suite against the Django store on every database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from celery_guard.core.clock import Clock
from celery_guard.testing.conformance import StoreConformance
from tests.stores import django_databases as databases

from celery_guard.contrib.django.store import DjangoStore  # isort: skip

pytestmark = [pytest.mark.conformance, pytest.mark.real]


class _Django(StoreConformance):
    name: ClassVar[str]
    rounds: ClassVar[int] = 20

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def database(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[str]:
        yield from databases.migrated(cls.name, request, tmp_path_factory.mktemp("database"))

    def connect(self, clock: Clock | None) -> DjangoStore:
        return DjangoStore(self.name, clock=clock)

    def wipe(self) -> None:
        databases.wipe(self.name)

    def opener(self) -> Callable[[], DjangoStore] | None:
        return databases.Opener(self.name)

    def unreachable(self) -> DjangoStore:
        return databases.unreachable(self.name)


class TestSQLite(_Django):
    name = "sqlite"
    own_time = False  # this host is the server


class TestPostgreSQL(_Django):
    name = "postgres"


class TestMariaDB(_Django):
    name = "mariadb"
