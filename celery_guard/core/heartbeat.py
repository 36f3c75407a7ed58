"""One heartbeat a process: every lease of the process renewed in one round trip an interval.

The interval is a third of the shortest lease that is held, so two beats may fail before a lease ends. An error
of the store is no verdict: the session's own deadline ends it where errors go on for longer than a lease.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from .contract import Refused, Store
from .errors import StoreError
from .session import Session

logger = logging.getLogger("celery_guard.heartbeat")

_LONGEST = 20.0
_SHORTEST = 0.1


class Heartbeat:
    """Renews the sessions that were added, from one daemon thread that starts with the first of them.

    Not shared over fork: make one per process.
    """

    def __init__(self, store: Store, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._sessions: dict[int, Session] = {}
        self._interval = _LONGEST
        self._thread: threading.Thread | None = None
        self._stopped = False

    def add(self, session: Session) -> None:
        """Renew this session from now on."""
        interval = max(session.lease.lease / 3000, _SHORTEST)
        with self._mutex:
            self._sessions[id(session)] = session
            if interval < self._interval:
                self._interval = interval
                self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="celery-guard-heartbeat", daemon=True)
                self._thread.start()

    def remove(self, session: Session) -> None:
        """Stop renewing this session."""
        with self._mutex:
            self._sessions.pop(id(session), None)

    def stop(self) -> None:
        """End the thread; sessions are no longer renewed."""
        with self._mutex:
            self._stopped = True
        self._wake.set()

    def beat(self) -> None:
        """Renew all sessions once, in one call of the store. The thread does nothing else."""
        with self._mutex:
            everyone = list(self._sessions.values())
        presumed = [session for session in everyone if session.lost is not None and not session.settled]
        sessions = [session for session in everyone if session.lost is None]
        if sessions:
            self._renew(sessions)
        for session in presumed:
            self._ask(session)

    def _renew(self, sessions: list[Session]) -> None:
        asked_at = self._monotonic()
        try:
            answers = self._store.renew([session.lease for session in sessions])
        except StoreError as exc:
            logger.warning("heartbeat: %s; leases hold until they end, trying again", exc)
            return
        for session, answer in zip(sessions, answers, strict=True):
            if isinstance(answer, Refused):
                session.mark_lost(answer.reason)
                logger.warning(
                    "lease of %s (token %s) is lost: %s", session.key, session.token, answer.reason
                )
            else:
                session.renewed(asked_at)

    def _ask(self, session: Session) -> None:
        """A loss is presumed: no longer renew, but learn whether another one took over, or the record is gone."""
        try:
            answer = self._store.verify(session.lease)
        except StoreError:
            return
        if isinstance(answer, Refused):
            session.mark_lost(answer.reason)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._interval)
            self._wake.clear()
            if self._stopped:
                return
            try:
                self.beat()
            except Exception:  # a defect here must not end the renewing of everything else
                logger.exception("heartbeat: unexpected error, trying again")
