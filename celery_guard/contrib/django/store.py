"""The store in a Django project's database: ``django://ALIAS``.

Every method is one short transaction on a connection of the store's own. It neither commits nor is rolled
back with a transaction of the caller, and works where that one is broken. The database's clock decides
expiry; on SQLite, whose server is this host, the host's.

Statements beside BEGIN and COMMIT, on a lock key that was used before (on MySQL, MariaDB and SQLite the first
use of one takes two more):

=========================  ==================================================================
begin that may run         5: lock, execution, head of the queue, insert or update, lock
begin that is skipped      5: lock, execution, holder, head, insert
begin of a copy            2
finish                     5: lock, execution, execution, lock, head of the queue
renew                      2, for any number of leases (a chunk: 1000; 300 on SQLite)
verify, get, now           1 and no transaction
checkpoint                 2
=========================  ==================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from celery_guard.core import rules
from celery_guard.core.clock import Clock
from celery_guard.core.contract import (
    Begun,
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
from celery_guard.core.errors import StoreUnavailableError
from celery_guard.core.states import State

from . import upkeep
from .commit import in_transaction, on_commit
from .rows import decode
from .steps import Steps
from .unit import RenewUnit, SqlUnit, Watch


class DjangoStore:
    """A :class:`~celery_guard.core.contract.Store` in the database of a Django alias.

    ``clock`` replaces the database's time, for tests. ``watch`` is told the text of each statement.
    """

    shared = True

    def __init__(
        self, alias: str = "default", *, clock: Clock | None = None, watch: Watch | None = None
    ) -> None:
        self.alias = alias
        self._steps = Steps(alias, clock=clock, watch=watch)

    def __repr__(self) -> str:
        return f"<DjangoStore django://{self.alias}>"

    def now(self) -> int:
        return self._steps.look("now", lambda unit: unit.tell())

    def check(self) -> Sequence[str]:
        return self._steps.run("check", upkeep.check)

    # -- publish --------------------------------------------------------------------------------------

    def reserve(self, trigger: Trigger, *, resend_after: int) -> Reserved | Standing | Mismatch:
        return self._steps.run("reserve", lambda unit: rules.reserve(unit, trigger, resend_after))

    def withdraw(self, key: str, trigger_id: str) -> bool:
        return self._steps.run("withdraw", lambda unit: rules.withdraw(unit, key, trigger_id))

    def in_transaction(self) -> bool:
        return in_transaction(self.alias)

    def reserve_joined(self, trigger: Trigger, *, resend_after: int) -> Reserved | Standing | Mismatch:
        return self._steps.join("reserve", lambda unit: rules.reserve(unit, trigger, resend_after))

    def after_commit(self, callback: Callable[[], object]) -> None:
        on_commit(callback, using=self.alias)

    # -- an attempt -----------------------------------------------------------------------------------

    def begin(self, trigger: Trigger, *, owner: str, retries: int = 0) -> Begun:
        return self._steps.run("begin", lambda unit: rules.begin(unit, trigger, owner, retries))

    def renew(self, leases: Sequence[Lease]) -> Sequence[Done | Refused]:
        def work(unit: RenewUnit) -> list[Done | Refused]:
            unit.fetch(lease.key for lease in leases)
            answers = [rules.renew(unit, lease) for lease in leases]
            unit.flush()
            return answers

        return self._steps.run_as(RenewUnit, "renew", work) if leases else []

    def finish(self, finish: Finish) -> Done | Refused:
        return self._steps.run("finish", lambda unit: rules.finish(unit, finish))

    def checkpoint(self, lease: Lease, data: str) -> Done | Refused:
        return self._steps.run("checkpoint", lambda unit: rules.checkpoint(unit, lease, data))

    def verify(self, lease: Lease) -> Done | Refused:
        def work(unit: upkeep.LookUnit) -> Done | Refused:
            return rules.verify(unit, lease)

        return self._steps.run_as(upkeep.LookUnit, "verify", work, atomic=False)

    # -- from outside of the body ---------------------------------------------------------------------

    def lose(self, key: str, delivery: str, reason: str) -> Done | Refused:
        return self._steps.run("lose", lambda unit: rules.lose(unit, key, delivery, reason))

    def end(
        self, trigger: Trigger, *, state: State, reason: str, delivery: str | None = None, retries: int = 0
    ) -> Done | Refused:
        return self._steps.run("end", lambda unit: rules.end(unit, trigger, state, reason, delivery, retries))

    def revoke(self, key: str, reason: str) -> Done | Refused:
        return self._steps.run("revoke", lambda unit: rules.revoke(unit, key, reason))

    # -- the dispatcher -------------------------------------------------------------------------------

    def sweep(self, dispatcher: str, *, ttl: int, limit: int = 100) -> Sweep:
        due = self._steps.run("sweep", lambda unit: upkeep.lead(unit, dispatcher, ttl, limit))
        if due is None:
            return Sweep(leader=False)
        sweep = Sweep(leader=True, more=0 < limit <= len(due))
        for key in due:
            try:
                sent, gone = self._steps.run("sweep", partial(rules.attend, key=key))
            except StoreUnavailableError:
                if sweep.dispatches or sweep.lost:
                    return sweep  # what was decided so far must be sent; the next sweep meets the rest
                raise
            lost = (*sweep.lost, key) if gone else sweep.lost
            sweep = replace(sweep, dispatches=(*sweep.dispatches, *sent), lost=lost)
        return sweep

    # -- looking, and cleaning up -----------------------------------------------------------------------

    def get(self, key: str) -> Execution | None:
        record = self._steps.look("get", lambda unit: unit.peek(key))
        return record.view() if record else None

    def executions(self, *, task: str | None = None, limit: int = 1000) -> Iterable[Execution]:
        params = (limit,) if task is None else (task, limit)

        def work(unit: SqlUnit) -> list[Execution]:
            found = unit.rows(unit.sql.listed(task=task is not None), params)
            return [decode(row).view() for row in found]

        return self._steps.look("executions", work)

    def counts(self) -> Mapping[tuple[str, State], int]:
        found = self._steps.look("counts", lambda unit: unit.rows(unit.sql.counts))
        counted: Counter[tuple[str, State]] = Counter()
        for task, state, count in found:
            counted[task, State(state)] += count
        return counted

    def purge(self, limit: int = 1000) -> int:
        purged = 0
        while purged < limit:
            batch = min(limit - purged, upkeep.BATCH)
            old = self._steps.run("purge", partial(upkeep.purge, limit=batch))
            purged += len(old)
            # Not in one transaction: all others take a lock before an execution, never after.
            if old:
                self._steps.run("purge", partial(upkeep.purge_locks, lock_keys=old))
            if len(old) < batch:
                break
        return purged

    def close(self) -> None:
        self._steps.connections.clear()
