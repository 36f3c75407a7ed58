"""Where the databases differ: the start of a transaction, the clock, row locks, and what an error means."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.utils import IntegrityError, OperationalError

#: Seconds. A client that stops in the middle of a step (a paused process, a lost network) keeps others from
#: its rows for no longer, where the server can tell; nobody waits longer for a row, a connection or an
#: answer.
PATIENCE = 10


class Dialect:
    """What the statements and steps need to know of a database. The base is what most agree on."""

    #: starts a transaction that may write, at READ COMMITTED where there are levels
    begin: ClassVar[str] = "BEGIN"
    #: an expression for the server's time in ms, read when the row is returned; None where it is the host's
    time: ClassVar[str | None] = None
    for_update: ClassVar[str] = " FOR UPDATE"
    #: whether one statement takes a row, made where it is missing, and returns it
    upserts: ClassVar[bool] = False
    #: how many keys one statement names
    chunk: ClassVar[int] = 1000
    #: run on a new connection
    prepare: ClassVar[tuple[str, ...]] = ()
    #: a setting that may lose what was committed: how to read it, its sound values, the warning
    durability: ClassVar[tuple[tuple[str, frozenset[str], str], ...]] = ()
    #: reads the storage engine of a table
    engine: ClassVar[str | None] = None
    #: whether SELECT can leave out the rows that others have; the server's version decides
    skips_locked = False
    _again: ClassVar[frozenset[Any]] = frozenset()
    _busy: ClassVar[frozenset[Any]] = frozenset()
    _missing: ClassVar[frozenset[Any]] = frozenset()

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return ``OPTIONS`` for a connection of the store's own, from the user's."""
        return options

    def _code(self, exc: BaseException) -> Any:
        """Return the driver's code of an error."""
        return None

    def again(self, exc: BaseException) -> bool:
        """Whether the step failed only because others ran at the same time: a deadlock, or the same new row."""
        return self._code(exc) in self._again

    def blocked(self, exc: BaseException) -> bool:
        """Whether others' locks are waited for by trying again, and this was one."""
        return False

    def busy(self, exc: BaseException) -> bool:
        """Whether the statement waited for others for as long as it may; the connection is sound."""
        return self._code(exc) in self._busy

    def missing(self, exc: BaseException) -> bool:
        """Whether a table or column is not there."""
        return self._code(exc) in self._missing


class PostgreSQL(Dialect):
    """One round trip starts the transaction. Nothing is left on the session, so transaction pooling
    (PgBouncer) is safe."""

    begin = (
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; "
        f"SET LOCAL lock_timeout = '{PATIENCE}s'; "
        f"SET LOCAL idle_in_transaction_session_timeout = '{PATIENCE}s'"
    )
    time = "floor(extract(epoch from clock_timestamp()) * 1000)::bigint"
    upserts = True
    durability = (
        (
            "SHOW fsync",
            frozenset({"on"}),
            "PostgreSQL runs with fsync={}: a crash may lose or damage what was committed",
        ),
        (
            "SHOW synchronous_commit",
            frozenset({"on", "local", "remote_write", "remote_apply"}),
            "PostgreSQL runs with synchronous_commit={}: a crash may lose what was committed last",
        ),
    )
    _again = frozenset({"40001", "40P01", "23505"})
    _busy = frozenset({"55P03", "57014"})
    _missing = frozenset({"42P01", "42703"})

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        # The user's pool is the caller's; several statements in one round trip need client-side binding.
        for name in ("pool", "isolation_level", "server_side_binding"):
            options.pop(name, None)
        bounds = {"keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 2}
        return {"connect_timeout": PATIENCE, "tcp_user_timeout": PATIENCE * 1000, **bounds, **options}

    def _code(self, exc: BaseException) -> Any:
        cause = exc.__cause__ or exc
        return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)  # psycopg, psycopg2


class MySQL(Dialect):
    """MySQL and MariaDB. READ COMMITTED, for no gap is to be locked; ``SYSDATE``, for the time of ``NOW`` is
    that of the statement's start."""

    begin = "START TRANSACTION READ WRITE"
    time = "FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * 1000)"
    # In UTC, so that no hour comes twice.
    prepare: ClassVar[tuple[str, ...]] = (
        "SET SESSION time_zone = '+00:00'",
        f"SET SESSION innodb_lock_wait_timeout = {PATIENCE}",
    )
    durability = (
        (
            "SELECT @@innodb_flush_log_at_trx_commit",
            frozenset({"1"}),
            "MySQL runs with innodb_flush_log_at_trx_commit={}: a crash may lose what was committed last",
        ),
    )
    engine = (
        "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s"
    )
    _again = frozenset({1213, 1020, 1062})
    _busy = frozenset({1205, 1969, 3024, 3572})
    _missing = frozenset({1146, 1054})

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        bounds = {"connect_timeout": PATIENCE, "read_timeout": 2 * PATIENCE, "write_timeout": PATIENCE}
        return {**bounds, **options, "isolation_level": "read committed"}

    def _code(self, exc: BaseException) -> Any:
        return exc.args[0] if exc.args else None


class MariaDB(MySQL):
    """MariaDB also ends a transaction whose client has gone quiet."""

    prepare = (*MySQL.prepare, f"SET SESSION idle_transaction_timeout = {PATIENCE}")


class SQLite(Dialect):
    """One writer at a time, from the start of its transaction. The host's clock is the server's."""

    begin = "BEGIN IMMEDIATE"
    for_update = ""
    chunk = 300
    durability = (
        (
            "PRAGMA synchronous",
            frozenset({"1", "2", "3"}),
            "SQLite runs with synchronous={}: a power failure may damage the file",
        ),
    )

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        # The wait is the store's own loop: SQLite's holds up all greenlets, and does not cover shared caches.
        options.pop("transaction_mode", None)
        return {**options, "timeout": 0.1}

    def again(self, exc: BaseException) -> bool:
        return self.blocked(exc) or (isinstance(exc, IntegrityError) and "UNIQUE" in str(exc))

    def blocked(self, exc: BaseException) -> bool:
        return isinstance(exc, OperationalError) and "locked" in str(exc)

    def missing(self, exc: BaseException) -> bool:
        return isinstance(exc, OperationalError) and ("no such table" in str(exc) or "no column" in str(exc))


def dialect_of(vendor: str, *, mariadb: bool = False) -> Dialect | None:
    """Return the dialect of a Django database vendor, or None where the store does not know it."""
    if vendor == "mysql":
        return MariaDB() if mariadb else MySQL()
    return {"postgresql": PostgreSQL, "sqlite": SQLite}.get(vendor, lambda: None)()
