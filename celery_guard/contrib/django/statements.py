"""The SQL of the store, made once for a dialect: few statements, each with one purpose.

In the templates a name in braces becomes a quoted column or table; values are never part of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.apps import apps

from .dialects import Dialect
from .rows import COLUMNS


class _Names(dict[str, str]):
    """Quoted names: those of tables are given, any other is a column's."""

    def __init__(self, quote: Callable[[str], str], **given: str) -> None:
        super().__init__(given)
        self.quote = quote

    def __missing__(self, name: str) -> str:
        self[name] = self.quote(name)
        return self[name]


def places(count: int) -> str:
    """Return so many placeholders."""
    return ", ".join(["%s"] * count)


class Statements:
    """Statements for one dialect. Where a row is taken, the first column is the server's time."""

    def __init__(self, dialect: Dialect, quote: Callable[[str], str]) -> None:
        self._dialect = dialect

        def table(model: str) -> str:
            return str(apps.get_model("celery_guard", model)._meta.db_table)

        self.table_name = table("Execution")
        self._names = _Names(
            quote,
            executions=quote(self.table_name),
            locks=quote(table("Lock")),
            dispatchers=quote(table("Dispatcher")),
            counters=quote(table("Counter")),
            columns=", ".join(map(quote, COLUMNS)),
            time=dialect.time or "0",
            taken=dialect.for_update,
        )
        sql = self._sql

        self.now = sql("SELECT {time}")
        self.peek = sql("SELECT {time}, {columns} FROM {executions} WHERE {current_key} = %s")
        self.load = self._load()
        # Asked under the lock only, so the time is known.
        self.heads = sql(
            "SELECT {columns} FROM {executions} WHERE {queue_key} = %s "
            "ORDER BY {order}, {number}, {key} LIMIT %s{taken}"
        )
        self.queued = sql("SELECT COUNT(*) FROM {executions} WHERE {queue_key} = %s")
        self.insert = sql("INSERT INTO {executions} ({columns}, {current_key}) VALUES ({values})").replace(
            "{values}", places(len(COLUMNS) + 1)
        )
        # by key, number and state as they were
        self.demote = sql(
            "UPDATE {executions} SET {current_key} = NULL, {queue_key} = NULL, {due_at} = NULL "
            "WHERE {current_key} = %s AND {number} = %s AND {state} = %s"
        )
        self.delete = sql(
            "DELETE FROM {executions} WHERE {current_key} = %s AND {number} = %s AND {state} = %s"
        )
        # now, key, number; the answers that it still owed are due again
        self.promote = sql(
            "UPDATE {executions} SET {current_key} = {key}, "
            "{due_at} = CASE WHEN {followers} = '' THEN NULL ELSE %s END WHERE {key} = %s AND {number} = %s"
        )
        self.save_lock = sql(
            "UPDATE {locks} SET {holders} = %s, {token} = %s, {quiet_until} = %s, {quiet_by} = %s "
            "WHERE {lock_key} = %s"
        )
        self.lead = sql("UPDATE {dispatchers} SET {owner} = %s, {expires_at} = %s WHERE {name} = %s")
        self.due = sql(
            "SELECT {key} FROM {executions} WHERE {due_at} <= %s AND {current_key} IS NOT NULL "
            "ORDER BY {due_at}, {key} LIMIT %s"
        )
        self.counts = sql(
            "SELECT {task}, {state}, COUNT(*) FROM {executions} GROUP BY {task}, {state} "
            "UNION ALL SELECT {task}, {state}, {count} FROM {counters}"
        )
        self.count = sql("UPDATE {counters} SET {count} = {count} + %s WHERE {task} = %s AND {state} = %s")
        self.first_count = sql("INSERT INTO {counters} ({count}, {task}, {state}) VALUES (%s, %s, %s)")

    def _sql(self, template: str) -> str:
        return template.replace("{values}", "{{values}}").format_map(self._names)

    def _load(self) -> str:
        row = "{columns} FROM {executions} WHERE {current_key} = %s{taken}"
        if not self._dialect.upserts:
            return self._sql("SELECT {time}, " + row)
        # PostgreSQL computes what it selects before it waits for the row. Outside of the WITH, after that.
        return self._sql(
            "WITH found AS (SELECT " + row + ") "
            "SELECT {time}, found.* FROM (SELECT 1) AS one LEFT JOIN found ON TRUE"
        )

    def take(self, table: str, name: str, columns: tuple[str, ...], empty: str) -> tuple[str, str | None]:
        """Return what takes one row by its name and reads time and columns, and what makes it where that
        finds none (None where the first one does)."""
        parts = {
            "table": "{" + table + "}",
            "name": "{" + name + "}",
            "last": "{" + columns[-1] + "}",
            "columns": ", ".join("{" + column + "}" for column in columns),
            "qualified": ", ".join("{" + table + "}.{" + column + "}" for column in columns),
        }
        insert = _fill("INSERT INTO <table> (<name>, <columns>) VALUES (%s, " + empty + ")", parts)
        if self._dialect.upserts:
            tail = " ON CONFLICT (<name>) DO UPDATE SET <last> = <table>.<last> RETURNING {time}, <qualified>"
            return self._sql(insert + _fill(tail, parts)), None
        select = _fill("SELECT {time}, <columns> FROM <table> WHERE <name> = %s{taken}", parts)
        if self._dialect.for_update:
            # Not IGNORE: that takes a shared lock first, and two of those wait for each other.
            insert += _fill(" ON DUPLICATE KEY UPDATE <name> = <name>", parts)
        return self._sql(select), self._sql(insert)

    def change(self, columns: Iterable[str], *, owned: bool) -> str:
        """Return the conditional write of columns: by key, number, state, owner and token as they were."""
        sets = ", ".join("{" + column + "} = %s" for column in columns)
        held = "{owner} = %s AND {token} = %s" if owned else "{owner} IS NULL"
        where = " WHERE {current_key} = %s AND {number} = %s AND {state} = %s AND "
        return self._sql("UPDATE {executions} SET " + sets + where + held)

    def load_many(self, count: int) -> str:
        """Return what takes the rows of keys, in one order for all. The highest time is that of the last."""
        where = "FROM {executions} WHERE {current_key} IN ({values}) ORDER BY {current_key}{taken}"
        if self._dialect.upserts:
            template = "WITH found AS (SELECT {columns} " + where + ") SELECT {time}, found.* FROM found"
        else:
            template = "SELECT {time}, {columns} " + where
        return self._sql(template).replace("{values}", places(count))

    def renew_many(self, count: int) -> str:
        """Return what prolongs leases that hold: now, now, keys, owners, tokens, now."""
        return self._sql(
            "UPDATE {executions} SET {expires_at} = %s + {lease}, {due_at} = %s + {lease} "
            "WHERE {current_key} IN ({values}) AND {owner} IN ({values}) AND {token} IN ({values}) "
            "AND {state} = 'running' AND {expires_at} > %s"
        ).replace("{values}", places(count))

    def listed(self, *, task: bool) -> str:
        """Return what reads executions, newest first: [task], limit."""
        where = "WHERE {task} = %s " if task else ""
        return self._sql("SELECT {columns} FROM {executions} " + where + "ORDER BY {id} DESC LIMIT %s")

    def old(self) -> str:
        """Return what takes final rows that were kept long enough: now, limit."""
        skip = " SKIP LOCKED" if self._dialect.skips_locked and self._dialect.for_update else ""
        return self._sql(
            "SELECT {id}, {task}, {state}, {lock_key} FROM {executions} "
            "WHERE {keep_until} <= %s ORDER BY {keep_until} LIMIT %s{taken}" + skip
        )

    def purge(self, count: int) -> str:
        """Return what deletes them: ids, now."""
        return self._sql("DELETE FROM {executions} WHERE {id} IN ({values}) AND {keep_until} <= %s").replace(
            "{values}", places(count)
        )

    def purge_locks(self, count: int) -> str:
        """Return what deletes free locks with old tokens: lock keys, the token that all are below, now."""
        return self._sql(
            "DELETE FROM {locks} WHERE {lock_key} IN ({values}) AND {holders} = '' AND {token} < %s "
            "AND {quiet_until} <= %s"
        ).replace("{values}", places(count))


def _fill(template: str, parts: dict[str, str]) -> str:
    for name, text in parts.items():
        template = template.replace(f"<{name}>", text)
    return template


_MADE: dict[type[Dialect], Statements] = {}


def statements_of(dialect: Dialect, quote: Callable[[str], str]) -> Statements:
    """Return the statements for a dialect."""
    found = _MADE.get(type(dialect))
    if found is None:
        found = _MADE[type(dialect)] = Statements(dialect, quote)
    return found
