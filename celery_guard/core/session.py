"""One attempt's view of its own ownership: what ``self.guard`` is inside a running task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from .contract import Acquired, Lease, Refused, Store
from .errors import LeaseLostError

#: After these of a store's reasons nothing else can come.
_VERDICTS = ("superseded", "missing")


class Session:
    """Ownership of one execution by this attempt, kept alive by the heartbeat.

    :meth:`check` raises :class:`~celery_guard.core.errors.LeaseLostError` once the attempt no longer owns its
    execution. It costs no round trip: the heartbeat and refused writes tell the session, and where neither can
    (the store is silent, the process was stopped) this process's own monotonic clock does, counted from before
    the last accepted renewal was sent, so never later than the store's own view.
    """

    def __init__(
        self,
        acquired: Acquired,
        store: Store,
        *,
        asked_at: float,
        scheduled_at: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease: Lease = acquired.lease
        self._attempt = acquired.attempt
        self._store = store
        self._scheduled_at = scheduled_at
        self._monotonic = monotonic
        self._mutex = threading.Lock()
        self._lost: str | None = None
        #: told the reason, once, in the thread that learns of a loss
        self.on_lost: Callable[[str], None] | None = None
        self._deadline = asked_at + self.lease.lease / 1000

    @property
    def guarded(self) -> bool:
        """Always true; an :class:`Unguarded` session says false."""
        return True

    @property
    def token(self) -> int:
        """The fencing token: higher than that of every earlier attempt under the same lock key."""
        return self.lease.token

    @property
    def attempt(self) -> int:
        """Which attempt of the execution this is, from 1."""
        return self._attempt

    @property
    def key(self) -> str:
        """The execution key."""
        return self.lease.key

    @property
    def scheduled_at(self) -> datetime | None:
        """The due time (aware, UTC) where a schedule triggered this execution."""
        if self._scheduled_at is None:
            return None
        return datetime.fromtimestamp(self._scheduled_at / 1000, UTC)

    @property
    def lost(self) -> str | None:
        """Why ownership is lost, or ``None`` while it holds as far as this process knows."""
        with self._mutex:
            if self._lost is None and self._monotonic() >= self._deadline:
                self._lost = "it was not renewed in time"
            return self._lost

    def check(self, *, ask_store: bool = False) -> None:
        """Return while this attempt owns its execution; raise :class:`LeaseLostError` otherwise.

        With ``ask_store`` the store is asked, one round trip; without, see the class.
        """
        reason = self.lost
        if reason is None and ask_store:
            answer = self._store.verify(self.lease)
            if isinstance(answer, Refused):
                reason = self.mark_lost(answer.reason)
        if reason is not None:
            raise LeaseLostError(key=self.key, token=self.token, reason=reason)

    @property
    def settled(self) -> bool:
        """Whether the store has said that ownership is lost for good. Before that a loss is only presumed."""
        with self._mutex:
            return self._lost in _VERDICTS

    def mark_lost(self, reason: str) -> str:
        """Note that a write was refused. The first reason stays, but for the store's last word."""
        with self._mutex:
            if self._lost in _VERDICTS or (self._lost is not None and reason not in _VERDICTS):
                return self._lost
            self._lost = reason
        if self.on_lost is not None:
            self.on_lost(reason)
        return reason

    def renewed(self, asked_at: float) -> None:
        """Note an accepted renewal that was sent at ``asked_at`` on the monotonic clock."""
        with self._mutex:
            self._deadline = max(self._deadline, asked_at + self.lease.lease / 1000)


class Unguarded:
    """What ``self.guard`` is where ``on_store_error="run"`` let a body run without a store: no token, no
    ownership to lose."""

    guarded = False
    token = None
    attempt = 0
    lost = None

    def __init__(self, key: str, scheduled_at: int | None = None) -> None:
        self.key = key
        self._scheduled_at = scheduled_at

    @property
    def scheduled_at(self) -> datetime | None:
        """The due time, as in a guarded session."""
        if self._scheduled_at is None:
            return None
        return datetime.fromtimestamp(self._scheduled_at / 1000, UTC)

    def check(self, *, ask_store: bool = False) -> None:
        """Nothing to check."""
