"""Database connections of the store's own, never the caller's.

A step takes one from here and gives it back; as many exist as steps run at once, and those that nobody took
for a while are closed. After a fork the child starts with none: the parent's are left alone, not closed, for
closing would end the parent's sessions.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections as callers
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend
from django.utils.connection import ConnectionDoesNotExist

from celery_guard.core.errors import StoreConfigurationError

from .dialects import Dialect, dialect_of

#: Seconds after which an unused connection is closed.
IDLE = 30.0


class Connection:
    """One connection, used by one step at a time."""

    def __init__(self, wrapper: BaseDatabaseWrapper, dialect: Dialect, origin: object) -> None:
        self.wrapper = wrapper
        self.dialect = dialect
        self.origin = origin
        self.used_at = 0.0

    def close(self) -> None:
        """Close, whatever state it is in."""
        raw: Any = self.wrapper.connection
        with suppress(Exception):
            self.wrapper.close()
        with suppress(Exception):
            if self.wrapper.connection is not None:  # Django keeps SQLite's shared memory open
                raw.close()


class Connections:
    """The connections to one alias' database in this process. Safe for threads and greenlets without a lock:
    a deque's ``append`` and ``pop`` are atomic, and a lock might be held at a fork."""

    def __init__(self, alias: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.alias = alias
        self._clock = clock
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        _ALL.add(self)

    def take(self) -> Connection:
        """Return a connection for this step alone: the one used last, else a new one.

        Raises Django's database errors where the server cannot be reached, and
        :class:`StoreConfigurationError` where the alias cannot hold the store.
        """
        origin = _origin(_settings(self.alias))
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._open(origin)
            if connection.origin == origin:
                self._busy.add(connection)
                return connection
            connection.close()  # the alias leads elsewhere now: a test runner's database

    def give(self, connection: Connection) -> None:
        """Take a sound connection back, outside of any transaction."""
        if connection not in self._busy:
            return
        connection.used_at = self._clock()
        self._busy.discard(connection)
        self._idle.append(connection)
        self._expire()

    def drop(self, connection: Connection) -> None:
        """Close a connection whose state is not known."""
        self._busy.discard(connection)
        connection.close()

    def clear(self) -> None:
        """Close those that nobody uses."""
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def _expire(self) -> None:
        while True:
            try:
                oldest = self._idle.popleft()
            except IndexError:
                return
            if self._clock() - oldest.used_at < IDLE:
                self._idle.appendleft(oldest)
                return
            oldest.close()

    def forget(self) -> None:
        """After a fork, in the child: have no connections, and leave the parent's as they are."""
        _PARENTS.extend((*self._idle, *self._busy))
        self._idle, self._busy = deque(), set()

    def _open(self, origin: object) -> Connection:
        user = _settings(self.alias)
        backend: Any = load_backend(user["ENGINE"])
        own = {**user, "ATOMIC_REQUESTS": False, "AUTOCOMMIT": True, "CONN_MAX_AGE": None}
        dialect = dialect_of(backend.DatabaseWrapper.vendor)
        if dialect is None:
            raise StoreConfigurationError(
                f"django://{self.alias}: {user['ENGINE']} cannot hold the guard store; use PostgreSQL, "
                "MariaDB, MySQL or SQLite"
            )
        own["OPTIONS"] = dialect.options(dict(user.get("OPTIONS") or {}))
        wrapper: BaseDatabaseWrapper = backend.DatabaseWrapper(own, self.alias)
        if private_to_connection(wrapper.vendor, str(user["NAME"])):
            raise StoreConfigurationError(
                f"django://{self.alias}: the SQLite database {str(user['NAME'])!r} is in memory and every "
                "connection has another; give the alias a file, or use memory:// in tests"
            )
        wrapper.inc_thread_sharing()
        wrapper.queries_log = deque(maxlen=0)  # in DEBUG, messages would pile up here
        try:
            wrapper.ensure_connection()
            if getattr(wrapper, "mysql_is_mariadb", False):
                dialect = dialect_of("mysql", mariadb=True) or dialect
            dialect.skips_locked = bool(wrapper.features.has_select_for_update_skip_locked)
            with wrapper.cursor() as cursor:
                for statement in dialect.prepare:
                    cursor.execute(statement)
        except BaseException:
            Connection(wrapper, dialect, origin).close()
            raise
        return Connection(wrapper, dialect, origin)


_ALL: weakref.WeakSet[Connections] = weakref.WeakSet()
#: Never freed: some drivers say goodbye to the server when an object goes.
_PARENTS: list[Connection] = []


def _after_fork() -> None:
    for connections in list(_ALL):
        connections.forget()


os.register_at_fork(after_in_child=_after_fork)


def private_to_connection(vendor: str, name: str) -> bool:
    """Say whether this is an SQLite database that no second connection sees."""
    if vendor != "sqlite":
        return False
    memory = name in ("", ":memory:") or ":memory:" in name or "mode=memory" in name
    return memory and "cache=shared" not in name


def _settings(alias: str) -> dict[str, Any]:
    try:
        settings.DATABASES  # noqa: B018 - says it where nothing is configured
        found: dict[str, Any] = callers.settings[alias]
    except KeyError:
        raise _no_alias(alias) from None
    except (ConnectionDoesNotExist, ImproperlyConfigured) as exc:
        raise StoreConfigurationError(f"django://{alias} needs a configured Django: {exc}") from exc
    return found


def _no_alias(alias: str) -> StoreConfigurationError:
    known = ", ".join(sorted(callers.settings)) or "none"
    return StoreConfigurationError(f"django://{alias}: DATABASES has no alias {alias!r}; it has {known}")


def _origin(found: dict[str, Any]) -> object:
    return tuple(str(found.get(name)) for name in ("ENGINE", "NAME", "HOST", "PORT", "USER"))
