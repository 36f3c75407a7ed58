"""What one atomic step sees and changes, in SQL (:class:`~celery_guard.core.rules.Unit`).

Rows are taken (``FOR UPDATE``) before anything is decided on them, and each write names the state, owner and
token that were read, so a write that would not fit fails and the step starts again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db.backends.utils import CursorWrapper

from celery_guard.core.clock import Clock
from celery_guard.core.rules import Lock, Record
from celery_guard.core.states import State

from .dialects import Dialect
from .rows import Row, decode, encode
from .statements import Statements

#: Told the text of each statement, for tests that count.
Watch = Callable[[str], None]


class StaleError(Exception):
    """A conditional write met another state than the one that was read. The step is tried again."""


class SqlUnit:
    """One step. ``now`` is set by what is taken first, **after** it was waited for, and stands from the first
    execution on, so that all of a step happens at one time."""

    def __init__(
        self,
        cursor: CursorWrapper,
        statements: Statements,
        dialect: Dialect,
        clock: Clock | None,
        watch: Watch | None,
    ) -> None:
        self._cursor = cursor
        self.sql = statements
        self.dialect = dialect
        self._clock = clock
        self._watch = watch
        self._fixed = False
        self.now = 0
        #: rows as they are in the table, by key
        self._seen: dict[str, Row] = {}
        #: the first of a queue, and how many were asked for, while nothing was written
        self._heads: dict[str, tuple[int, list[tuple[Any, ...]]]] = {}

    # -- statements ---------------------------------------------------------------------------------

    def run(self, sql: str, params: Iterable[Any] | None = None) -> int:
        """Execute and return how many rows it met."""
        if self._watch is not None:
            self._watch(sql)
        self._cursor.execute(sql, None if params is None else tuple(params))
        return int(self._cursor.rowcount)

    def rows(self, sql: str, params: Iterable[Any] | None = None) -> list[tuple[Any, ...]]:
        """Execute and return all rows."""
        self.run(sql, params)
        return list(self._cursor.fetchall())

    def row(self, sql: str, params: Iterable[Any] | None = None) -> tuple[Any, ...] | None:
        """Execute and return the one row, if there is one."""
        found = self.rows(sql, params)
        return found[0] if found else None

    def tell(self, server: Any = None) -> int:
        """Set the time and return it: the injected clock's, the host's where that is the server's, else what
        the server said. Where it has not said anything it is asked."""
        if not self._fixed:
            if self._clock is not None:
                self.now = int(self._clock() * 1000)
            else:
                asked = (self.row(self.sql.now) or (0,))[0] if server is None else server
                self.now = max(self.now, int(asked))
        return self.now

    # -- locks --------------------------------------------------------------------------------------

    def lock(self, lock_key: str) -> Lock:
        columns = ("holders", "token", "quiet_until", "quiet_by")
        holders, token, quiet_until, quiet_by = self.take(
            "locks", "lock_key", columns, "'', 0, 0, NULL", lock_key
        )
        return Lock(
            lock_key=lock_key,
            holders=json.loads(holders) if holders else [],
            token=token,
            quiet_until=quiet_until,
            quiet_by=quiet_by,
        )

    def take(self, table: str, name: str, columns: tuple[str, ...], empty: str, value: str) -> Sequence[Any]:
        """Take a row by its name, made where it is missing, and read the time after that."""
        first, make = self.sql.take(table, name, columns, empty)
        found = self.row(first, (value,))
        if found is None and make is not None:
            self.run(make, (value,))
            found = self.row(first, (value,))
        if found is None:  # made by another, and deleted at once
            raise StaleError(value)
        self.tell(found[0])
        return found[1:]

    def save_lock(self, lock: Lock) -> None:
        holders = json.dumps(lock.holders) if lock.holders else ""
        values = (holders, lock.token, lock.quiet_until, lock.quiet_by)
        self._wrote(self.run(self.sql.save_lock, (*values, lock.lock_key)), lock.lock_key)

    # -- executions ---------------------------------------------------------------------------------

    def peek(self, key: str) -> Record | None:
        found = self.row(self.sql.peek, (key,))
        return None if found is None else decode(found[1:])

    def load(self, key: str) -> Record | None:
        return self._loaded(key, self.row(self.sql.load, (key,)))

    def read(self, key: str) -> Record | None:
        """Load without taking, for a step that only looks."""
        return self._loaded(key, self.row(self.sql.peek, (key,)))

    def _loaded(self, key: str, found: tuple[Any, ...] | None) -> Record | None:
        if found is not None:
            self.tell(found[0])
        elif not self.now:
            self.tell()
        self._fixed = True
        if found is None or found[1] is None:
            self._seen.pop(key, None)
            return None
        return self._remember(decode(found[1:]))

    def _remember(self, record: Record) -> Record:
        self._seen[record.key] = encode(record)
        return record

    def heads(self, lock_key: str, count: int) -> list[Record]:
        asked, found = self._heads.get(lock_key, (0, []))
        # a queue that was shorter than what was asked for has no more
        if asked < count and (asked == 0 or len(found) == asked):
            found = self.rows(self.sql.heads, (lock_key, count))
            self._heads[lock_key] = count, found
        return [self._remember(decode(row)) for row in found[:count]]

    def queued(self, lock_key: str) -> int:
        found = self.row(self.sql.queued, (lock_key,))
        return int(found[0]) if found else 0

    def save(self, record: Record) -> None:
        self._heads.clear()
        row, seen = encode(record), self._seen.get(record.key)
        if seen is not None and seen["number"] == record.number:
            changed = [name for name, value in row.items() if value != seen[name]]
            if changed:
                values = [row[name] for name in changed]
                owned = seen["owner"] is not None
                held = (seen["owner"], seen["token"]) if owned else ()
                sql = self.sql.change(changed, owned=owned)
                self._wrote(self.run(sql, (*values, *_identity(seen), *held)), record.key)
        else:
            if seen is not None:  # the next execution of the key: the one before becomes history
                self._wrote(self.run(self.sql.demote, _identity(seen)), record.key)
            self.run(self.sql.insert, (*row.values(), record.key))
        self._seen[record.key] = row

    def delete(self, record: Record) -> None:
        self._heads.clear()
        seen = self._seen.pop(record.key)
        self._wrote(self.run(self.sql.delete, _identity(seen)), record.key)
        if record.previous is not None:  # the execution before is the newest again
            self.run(self.sql.promote, (self.now, record.key, record.previous))

    def moved(self, record: Record) -> None:
        # Finals are counted by their rows. An outcome that is opened again leaves the rows, and still counts.
        seen = self._seen.get(record.key)
        if seen is None or seen["number"] != record.number or record.state is not State.PENDING:
            return
        if State(seen["state"]).final:
            self.count(record.task, seen["state"], 1)

    def count(self, task: str, state: str, count: int) -> None:
        """Add to what rows do not count."""
        if not self.run(self.sql.count, (count, task, state)):
            self.run(self.sql.first_count, (count, task, state))

    @staticmethod
    def _wrote(rows: int, key: str) -> None:
        if rows != 1:
            raise StaleError(key)


def _identity(seen: Row) -> tuple[Any, ...]:
    return seen["key"], seen["number"], seen["state"]


class JoinedUnit(SqlUnit):
    """A step in the caller's transaction. What it locks stays locked until that ends, so it takes no lock key
    and reads executions without taking them; the unique key of the new row decides between two publishers. The
    second try is ``careful``: it waits for the row that was in its way, and sees it whatever the isolation."""

    careful = False

    def lock(self, lock_key: str) -> Lock:
        return Lock(lock_key=lock_key)

    def load(self, key: str) -> Record | None:
        return super().load(key) if self.careful else self.read(key)


class RenewUnit(SqlUnit):
    """A step on many leases at once: two statements a chunk, however many there are."""

    def fetch(self, keys: Iterable[str]) -> None:
        """Take the rows of all keys, in chunks."""
        wanted = sorted(set(keys))
        self._records: dict[str, Record] = {}
        for start in range(0, len(wanted), self.dialect.chunk):
            chunk = wanted[start : start + self.dialect.chunk]
            found = self.rows(self.sql.load_many(len(chunk)), chunk)
            if found:
                self.tell(max(row[0] for row in found))
            for row in found:
                record = decode(row[1:])
                self._records[record.key] = record
        self._renewed: dict[str, Record] = {}

    def load(self, key: str) -> Record | None:
        return self._records.get(key)

    def save(self, record: Record) -> None:
        self._renewed[record.key] = record

    def flush(self) -> None:
        """Write what was renewed."""
        records = list(self._renewed.values())
        for start in range(0, len(records), self.dialect.chunk):
            chunk = records[start : start + self.dialect.chunk]
            keys, owners, tokens = zip(*((r.key, r.owner, r.token) for r in chunk), strict=True)
            sql = self.sql.renew_many(len(chunk))
            wrote = self.run(sql, (self.now, self.now, *keys, *owners, *tokens, self.now))
            if wrote != len(chunk):
                raise StaleError(f"{len(chunk) - wrote} of {len(chunk)} leases")
