"""The reference store: plain dictionaries under one lock, the rules of :mod:`celery_guard.core.rules`.

For tests, eager mode and single-process set-ups. Nothing outlives the process, and other processes do not see
it: a worker with a prefork pool refuses it at start-up.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy

from ..core import rules
from ..core.clock import Clock, system_clock
from ..core.contract import (
    Begun,
    Dispatch,
    Done,
    Execution,
    Finish,
    Lease,
    Mismatch,
    Refused,
    Reserved,
    Standing,
    Sweep,
    Trigger,
)
from ..core.rules import Lock, Record
from ..core.states import State


class MemoryStore:
    """A :class:`~celery_guard.core.contract.Store` in this process's memory. ``clock`` is its server clock."""

    shared = False

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._records: dict[str, Record] = {}
        self._locks: dict[str, Lock] = {}
        self._finals: Counter[tuple[str, State]] = Counter()
        self._dispatcher: tuple[str, int] | None = None

    @contextmanager
    def _unit(self) -> Iterator[_Unit]:
        with self._mutex:
            yield _Unit(self, int(self._clock() * 1000))

    def now(self) -> int:
        return int(self._clock() * 1000)

    def check(self) -> Sequence[str]:
        return ()

    def reserve(self, trigger: Trigger, *, resend_after: int) -> Reserved | Standing | Mismatch:
        with self._unit() as unit:
            return rules.reserve(unit, trigger, resend_after)

    def withdraw(self, key: str, trigger_id: str) -> bool:
        with self._unit() as unit:
            return rules.withdraw(unit, key, trigger_id)

    def begin(self, trigger: Trigger, *, owner: str, retries: int = 0) -> Begun:
        with self._unit() as unit:
            return rules.begin(unit, trigger, owner, retries)

    def renew(self, leases: Sequence[Lease]) -> Sequence[Done | Refused]:
        with self._unit() as unit:
            return [rules.renew(unit, lease) for lease in leases]

    def finish(self, finish: Finish) -> Done | Refused:
        with self._unit() as unit:
            return rules.finish(unit, finish)

    def checkpoint(self, lease: Lease, data: str) -> Done | Refused:
        with self._unit() as unit:
            return rules.checkpoint(unit, lease, data)

    def verify(self, lease: Lease) -> Done | Refused:
        with self._unit() as unit:
            return rules.verify(unit, lease)

    def lose(self, key: str, delivery: str, reason: str) -> Done | Refused:
        with self._unit() as unit:
            return rules.lose(unit, key, delivery, reason)

    def end(
        self, trigger: Trigger, *, state: State, reason: str, delivery: str | None = None, retries: int = 0
    ) -> Done | Refused:
        with self._unit() as unit:
            return rules.end(unit, trigger, state, reason, delivery, retries)

    def revoke(self, key: str, reason: str) -> Done | Refused:
        with self._unit() as unit:
            return rules.revoke(unit, key, reason)

    def sweep(self, dispatcher: str, *, ttl: int, limit: int = 100) -> Sweep:
        with self._unit() as unit:
            if self._dispatcher and self._dispatcher[0] != dispatcher and self._dispatcher[1] > unit.now:
                return Sweep(leader=False)
            self._dispatcher = (dispatcher, unit.now + ttl)
            due = sorted(
                (record.due_at, key)
                for key, record in self._records.items()
                if record.due_at is not None and record.due_at <= unit.now
            )
            dispatches: list[Dispatch] = []
            lost: list[str] = []
            for _, key in due[:limit]:
                sent, gone = rules.attend(unit, key)
                dispatches.extend(sent)
                if gone:
                    lost.append(key)
            return Sweep(leader=True, dispatches=dispatches, lost=lost, more=0 < limit <= len(due))

    def get(self, key: str) -> Execution | None:
        with self._mutex:
            record = self._records.get(key)
            return record.view() if record else None

    def executions(self, *, task: str | None = None, limit: int = 1000) -> Iterable[Execution]:
        with self._mutex:
            found = [record for record in self._records.values() if task is None or record.task == task]
            found.sort(key=lambda record: record.created_at, reverse=True)
            return [record.view() for record in found[:limit]]

    def counts(self) -> Mapping[tuple[str, State], int]:
        with self._mutex:
            counted = Counter(self._finals)
            counted.update((r.task, r.state) for r in self._records.values() if not r.state.final)
            return counted

    def purge(self, limit: int = 1000) -> int:
        with self._unit() as unit:
            old = [
                key
                for key, record in self._records.items()
                if record.state.final and record.keep_until is not None and record.keep_until <= unit.now
            ][:limit]
            for key in old:
                del self._records[key]
            return len(old)

    def close(self) -> None:
        """Nothing to release."""


class _Unit:
    """One step on the dictionaries. Records are copied out and in, so a step that raises changes nothing it
    did not save."""

    def __init__(self, store: MemoryStore, now: int) -> None:
        self._store = store
        self.now = now

    def lock(self, lock_key: str) -> Lock:
        return self._store._locks.setdefault(lock_key, Lock(lock_key=lock_key))

    def peek(self, key: str) -> Record | None:
        return self.load(key)

    def load(self, key: str) -> Record | None:
        return deepcopy(self._store._records.get(key))

    def _queue(self, lock_key: str) -> list[Record]:
        return [r for r in self._store._records.values() if r.queued and r.lock_key == lock_key]

    def heads(self, lock_key: str, count: int) -> list[Record]:
        queue = sorted(self._queue(lock_key), key=lambda r: (r.order, r.number, r.key))
        return deepcopy(queue[:count])

    def queued(self, lock_key: str) -> int:
        return len(self._queue(lock_key))

    def save(self, record: Record) -> None:
        self._store._records[record.key] = deepcopy(record)

    def save_lock(self, lock: Lock) -> None:
        self._store._locks[lock.lock_key] = lock

    def delete(self, record: Record) -> None:
        self._store._records.pop(record.key, None)

    def moved(self, record: Record) -> None:
        if record.state.final:
            self._store._finals[(record.task, record.state)] += 1
