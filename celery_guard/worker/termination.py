"""Ending a replaced body that does not listen: ``terminate_after``.

The child ends itself, so that it can never be another task's child: the timer and the way out of the task take
the same lock, and whoever has it first decides::

    timer thread                         main thread
    takes the lock, body still runs      (body goes on)
    kills its own process                ends with it, inside the task

    (waits)                              body returned: takes the lock, closes
    takes the lock, closed: nothing      the next task starts
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable

from billiard.process import current_process

from ..core.session import Session

logger = logging.getLogger("celery_guard")


def in_pool_child() -> bool:
    """Whether this process is a child of a prefork pool, which the pool replaces when it dies."""
    return str(current_process().name) != "MainProcess"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Termination:
    """Kills this process ``grace`` seconds after the session learned that another attempt took its place,
    unless the body has ended by then."""

    def __init__(self, session: Session, grace: float, *, kill: Callable[[], None] = _die) -> None:
        self._session = session
        self._grace = grace
        self._kill = kill
        self._mutex = threading.Lock()
        self._closed = False
        self._timer: threading.Timer | None = None

    def start(self, reason: str) -> None:
        """The lease is lost: give the body its grace. Other reasons than a takeover are not a verdict."""
        with self._mutex:
            if self._closed or self._timer is not None or reason != "superseded":
                return
            self._timer = threading.Timer(self._grace, self._end)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """The body has ended. After this nothing is killed."""
        with self._mutex:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()

    def _end(self) -> None:
        with self._mutex:
            if self._closed:
                return
            logger.warning(
                "%s (token %s) was replaced %.1f s ago and its body still runs: its process ends",
                self._session.key,
                self._session.token,
                self._grace,
            )
            self._kill()
