"""One atomic step: a short transaction on a connection of the store's own, tried again where only others were
in the way, and every other error of the driver as one of the store's."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections as callers
from django.db import transaction
from django.db.utils import Error, IntegrityError, InterfaceError, OperationalError

from celery_guard.core.clock import Clock, system_clock
from celery_guard.core.errors import GuardError, StoreConfigurationError, StoreUnavailableError

from .connections import Connection, Connections
from .dialects import PATIENCE, dialect_of
from .statements import statements_of
from .unit import JoinedUnit, SqlUnit, StaleError, Watch

T = TypeVar("T")
U = TypeVar("U", bound=SqlUnit)

#: How often a step that lost a deadlock or a race is tried.
TRIES = 20


class Steps:
    """Runs steps for one alias. ``clock`` replaces the server's time; ``watch`` is told each statement."""

    def __init__(self, alias: str, *, clock: Clock | None = None, watch: Watch | None = None) -> None:
        self.alias = alias
        self.name = f"django://{alias}"
        self.connections = Connections(alias)
        self.watch = watch
        self._clock = clock

    def run(self, operation: str, work: Callable[[SqlUnit], T]) -> T:
        """Do ``work`` in a transaction of its own, committed when this returns.

        Raises :class:`StoreUnavailableError`, after which the step may or may not have happened, and
        :class:`StoreConfigurationError`.
        """
        return self.run_as(SqlUnit, operation, work)

    def look(self, operation: str, work: Callable[[SqlUnit], T]) -> T:
        """Do ``work`` that is one statement and only reads, without a transaction."""
        return self.run_as(SqlUnit, operation, work, atomic=False)

    def run_as(self, unit: type[U], operation: str, work: Callable[[U], T], *, atomic: bool = True) -> T:
        """:meth:`run` with another unit."""
        attempt = _Attempt(self, operation)
        while True:
            connection = attempt.take()
            try:
                found = self._once(unit, connection, work, attempt, atomic=atomic)
            except (Error, StaleError) as exc:
                self._recover(connection, exc)
                attempt.judge(connection, exc)
            except GuardError as exc:
                self._recover(connection, exc)
                raise
            except BaseException:  # a time limit in the middle: the connection's state is anybody's guess
                self.connections.drop(connection)
                raise
            else:
                self.connections.give(connection)
                return found

    def join(self, operation: str, work: Callable[[JoinedUnit], T]) -> T:
        """Do ``work`` in the transaction that the caller has open on the alias, behind a savepoint.

        Raises :class:`StoreUnavailableError`; the caller's transaction goes on unless the server ended it.
        """
        _require_app(self.name)
        connection = callers[self.alias]
        dialect = dialect_of(connection.vendor, mariadb=getattr(connection, "mysql_is_mariadb", False))
        assert dialect is not None  # the store would not be on this alias
        clock = self._clock or (system_clock if dialect.time is None else None)
        statements = statements_of(dialect, connection.ops.quote_name)
        for careful in (False, True):
            try:
                with transaction.atomic(using=self.alias), connection.cursor() as cursor:
                    unit = JoinedUnit(cursor, statements, dialect, clock, self.watch)
                    unit.careful = careful
                    return work(unit)
            except (IntegrityError, StaleError) as exc:
                if careful:
                    raise StoreUnavailableError(
                        store=self.name, operation=operation, message=f"others were in the way: {exc}"
                    ) from exc
            except Error as exc:
                raise StoreUnavailableError(store=self.name, operation=operation, message=str(exc)) from exc
        raise AssertionError("not reached")

    def _once(
        self,
        kind: type[U],
        connection: Connection,
        work: Callable[[U], T],
        attempt: _Attempt,
        *,
        atomic: bool,
    ) -> T:
        dialect = connection.dialect
        # SQLite's server is this host.
        clock = self._clock or (system_clock if dialect.time is None else None)
        attempt.committing = False
        with connection.wrapper.cursor() as cursor:
            statements = statements_of(dialect, connection.wrapper.ops.quote_name)
            unit = kind(cursor, statements, dialect, clock, self.watch)
            if not atomic:
                return work(unit)
            unit.run(dialect.begin)
            found = work(unit)
            attempt.committing = True
            unit.run("COMMIT")
            return found

    def _recover(self, connection: Connection, exc: BaseException) -> None:
        """Leave no transaction behind: roll back and keep the connection, or else close it."""
        sound = isinstance(exc, StaleError | IntegrityError | GuardError)
        sound = sound or connection.dialect.again(exc) or connection.dialect.busy(exc)
        if sound and _rolled_back(connection):
            self.connections.give(connection)
        else:
            self.connections.drop(connection)


def _rolled_back(connection: Connection) -> bool:
    # SQLite says whether there is a transaction, and refuses to end one that is not there.
    if not getattr(connection.wrapper.connection, "in_transaction", True):
        return True
    try:
        with connection.wrapper.cursor() as cursor:
            cursor.execute("ROLLBACK")
    except Error:
        return False
    return True


class _Attempt:
    """What is left to try for one step, and what its end is called."""

    def __init__(self, steps: Steps, operation: str) -> None:
        self._steps = steps
        self._operation = operation
        self._tries = 0
        self._reconnected = False
        self._started = time.monotonic()
        #: set while the fate of the transaction is not known
        self.committing = False

    def take(self) -> Connection:
        """Return a connection. Raises the store's errors."""
        try:
            _require_app(self._steps.name)
            return self._steps.connections.take()
        except Error as exc:
            raise self._unavailable(exc, "cannot connect") from exc
        except ImproperlyConfigured as exc:
            raise StoreConfigurationError(f"{self._steps.name}: {exc}") from exc

    def judge(self, connection: Connection, exc: Exception) -> None:
        """Return to have the step tried again, or raise what it ends with."""
        dialect = connection.dialect
        if isinstance(exc, StaleError) or dialect.again(exc):
            self._tries += 1
            waited = time.monotonic() - self._started
            if waited < self._patience() if dialect.blocked(exc) else self._tries < TRIES:
                time.sleep(random.uniform(0.001, min(0.004 * self._tries, 0.05)))
                return
            raise self._unavailable(exc, self._in_the_way()) from exc
        if dialect.missing(exc):
            raise StoreConfigurationError(
                f"{self._steps.name}: the guard's tables are missing or of another version ({exc}); run "
                f"`manage.py migrate celery_guard --database {self._steps.alias}`"
            ) from exc
        lost = isinstance(exc, OperationalError | InterfaceError) and not dialect.busy(exc)
        if lost and not self.committing and not self._reconnected:
            # The server ended this session, and so maybe the idle ones. Nothing was committed.
            self._reconnected = True
            self._steps.connections.clear()
            return
        raise self._unavailable(exc, "the answer to COMMIT was lost" if self.committing else "") from exc

    def _patience(self) -> float:
        # In the caller's own transaction waiting does not help where that is what has the lock.
        return PATIENCE / 5 if _caller_in_transaction(self._steps.alias) else PATIENCE

    def _in_the_way(self) -> str:
        if _caller_in_transaction(self._steps.alias):
            return (
                "others had the rows for too long. This thread has a transaction open on the same alias; on "
                "SQLite its writes keep everybody else out: commit first, or give the guard a file of its own"
            )
        return "others had the rows for too long"

    def _unavailable(self, exc: Exception, why: str) -> StoreUnavailableError:
        text = ": ".join(part for part in (why, str(exc).strip() or type(exc).__name__) if part)
        return StoreUnavailableError(store=self._steps.name, operation=self._operation, message=text)


def _caller_in_transaction(alias: str) -> bool:
    return any(one.alias == alias and one.in_atomic_block for one in callers.all(initialized_only=True))


def _require_app(store: str) -> None:
    try:
        if not apps.ready:
            django.setup()
    except (ImproperlyConfigured, RuntimeError) as exc:
        raise StoreConfigurationError(f"{store} needs a configured Django: {exc}") from exc
    if not apps.is_installed("celery_guard.contrib.django"):
        raise StoreConfigurationError(
            f"{store} needs its tables: add 'celery_guard.contrib.django' to INSTALLED_APPS and run migrate"
        )
