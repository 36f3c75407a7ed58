"""SQL keeps what the reference keeps: the same random life, on both, compared after every step.

The rules are shared, so what is tried here is rows: what is read, taken, written, counted and swept. Two things
differ on purpose: SQL keeps the earlier executions of a key as history, and a withdrawn reservation gives the one
before it back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from celery_guard.contrib.django.store import DjangoStore
from celery_guard.core.rules import Record
from celery_guard.stores.memory import MemoryStore
from celery_guard.testing.conformance.scene import SteppedClock
from tests.stores import django_databases as databases
from tests.stores.test_redis_equals_memory import KEYS, Life, Pair, plain

pytestmark = pytest.mark.real

STEPS = 300
SEEDS = range(int(os.environ.get("CELERY_GUARD_FUZZ_SEEDS", "8")))


@pytest.fixture(scope="module", params=databases.ALIASES)
def alias(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from databases.migrated(request.param, request, tmp_path_factory.mktemp("database"))


class SqlPair(Pair):
    """Knows the two differences."""

    reference: MemoryStore

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._history: dict[tuple[str, int], Record] = {}

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "purge":
            return self._purge(*args)
        withdrawn = deepcopy(self.reference._records.get(args[0])) if name == "withdraw" else None
        answer = self._compared(name, args, kwargs)
        # a record that stays went on as a follower's
        gone = withdrawn is not None and answer and args[0] not in self.reference._records
        if withdrawn is not None and gone and withdrawn.previous is not None:
            self._give_back(withdrawn.key, withdrawn.previous)
        for record in self.reference._records.values():
            if record.state.final:
                self._history[record.key, record.number] = deepcopy(record)
        self._compare_records()
        return answer

    def _compared(self, name: str, args: Any, kwargs: Any) -> Any:
        self.log.append(f"{self.clock.milliseconds % 10**8}: {name}{args}{kwargs}")
        expected = plain(getattr(self.reference, name)(*args, **kwargs))
        got = plain(getattr(self.tried, name)(*args, **kwargs))
        assert got == expected, self.story("the answers differ", expected, got)
        return expected

    def _compare_records(self) -> None:
        for key in KEYS:
            there, here = self.reference.get(key), self.tried.get(key)
            assert here == there, self.story(f"the records of {key} differ", there, here)

    def _give_back(self, key: str, number: int) -> None:
        before = self._history.get((key, number))
        if before is not None:
            before = deepcopy(before)
            before.due_at = self.clock.milliseconds if before.followers else None
            self.reference._records[key] = before

    def _purge(self, limit: int) -> None:
        self.log.append(f"{self.clock.milliseconds % 10**8}: purge({limit})")
        assert self.tried.purge(limit) >= self.reference.purge(limit)
        if limit:
            kept = {k: r for k, r in self._history.items() if (r.keep_until or 0) > self.clock.milliseconds}
            self._history = kept
        self._compare_records()

    def compare_views(self) -> None:
        expected = {key: count for key, count in self.reference.counts().items() if count}
        got = {key: count for key, count in self.tried.counts().items() if count}
        assert got == expected, self.story("the counts differ", expected, got)
        for task in (None, "task", "no such task"):
            there = {(e.key, e.number): e for e in self.reference.executions(task=task)}
            found = list(self.tried.executions(task=task))
            here = {(e.key, e.number): e for e in found if (e.key, e.number) in there}
            assert here == there
            assert all(not e.state.final or (e.key, e.number) in self._history for e in found)


@pytest.mark.parametrize("seed", SEEDS)
def test_sql_lives_the_life_of_the_reference(alias: str, seed: int) -> None:
    databases.wipe(alias)
    clock = SteppedClock()
    tried = DjangoStore(alias, clock=clock)
    Life(SqlPair(MemoryStore(clock=clock), tried, clock), seed).live(STEPS)
    tried.close()
