"""Steps that no attempt takes: the dispatcher's leadership, deleting what is old, looking at the set-up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from celery_guard.core.errors import StoreConfigurationError
from celery_guard.core.rules import Record
from celery_guard.core.states import State

from .unit import SqlUnit

#: Rows that one transaction deletes.
BATCH = 200
#: A free lock's row is deleted with its last executions once its newest token is this old (ms). Tokens follow
#: the clock, so the next one is higher all the same; the margin is for a clock that is set back.
LOCK_KEEP = 600_000
#: The one dispatcher's row.
_LEADER = "dispatcher"


class LookUnit(SqlUnit):
    """A step of one look: rows are read, not taken."""

    def load(self, key: str) -> Record | None:
        return self.read(key)


def lead(unit: SqlUnit, dispatcher: str, ttl: int, limit: int) -> Sequence[str] | None:
    """Be the one dispatcher for ``ttl`` ms and return the keys that are due, or None where another one is."""
    owner, expires_at = unit.take("dispatchers", "name", ("owner", "expires_at"), "NULL, 0", _LEADER)
    if owner is not None and owner != dispatcher and expires_at > unit.now:
        return None
    unit.run(unit.sql.lead, (dispatcher, unit.now + ttl, _LEADER))
    return [row[0] for row in unit.rows(unit.sql.due, (unit.now, limit))]


def purge(unit: SqlUnit, limit: int) -> Sequence[str]:
    """Delete final rows that were kept long enough, still count them, and return their lock keys."""
    now = unit.tell()
    old = [row for row in unit.rows(unit.sql.old(), (now, limit)) if State(row[2]).final]
    if old:
        unit.run(unit.sql.purge(len(old)), (*(row[0] for row in old), now))
    # In one order for all, so that two purges do not wait for each other.
    for (task, state), count in sorted(Counter((row[1], row[2]) for row in old).items()):
        unit.count(task, state, count)
    return [row[3] for row in old]


def purge_locks(unit: SqlUnit, lock_keys: Sequence[str]) -> None:
    """Delete those of the locks that nobody holds and nobody held lately."""
    keys = sorted(set(lock_keys))
    now = unit.tell()
    unit.run(unit.sql.purge_locks(len(keys)), (*keys, (now - LOCK_KEEP) * 1000, now))


def check(unit: SqlUnit) -> Sequence[str]:
    """Warn of a set-up that may lose what was committed; see that the tables are there."""
    unit.load("")
    warnings = []
    for sql, sound, text in unit.dialect.durability:
        found = unit.row(sql)
        if found is not None and str(found[0]).lower() not in sound:
            warnings.append(text.format(found[0]))
    if unit.dialect.engine:
        found = unit.row(unit.dialect.engine, (unit.sql.table_name,))
        if found is not None and str(found[0]).lower() != "innodb":
            raise StoreConfigurationError(
                f"the guard's tables use the engine {found[0]}, which has no transactions; make them InnoDB"
            )
    return warnings
