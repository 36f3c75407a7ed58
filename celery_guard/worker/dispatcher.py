"""The dispatcher: the part of every worker that sends again what waits, or whose owner is gone.

One at a time across the fleet, elected in the same store call that looks for work: a sweep a second, one round
trip. It runs in a thread of the worker's main process with its own store and broker connections, so neither a
busy pool nor a slow store holds up the other. Losing it costs its election's time to live, then another
worker's takes over.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import Any

from celery import bootsteps

from ..core.errors import StoreConfigurationError, StoreError
from .envelope import Envelope, send
from .runtime import make_store
from .task import guarding

logger = logging.getLogger("celery_guard.dispatcher")

_INTERVAL = 1.0
_TTL = 3_000
_PURGE_EVERY = 60.0
_PURGE = 1000
_LIMIT = 100


class Dispatcher:
    """Sweeps until stopped. ``wait`` is an :class:`threading.Event`'s wait, so tests need no time."""

    def __init__(self, app: Any, *, interval: float = _INTERVAL) -> None:
        self._app = app
        self._interval = interval
        self._name = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._purged_at = time.monotonic()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="celery-guard-dispatcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for a sweep that is under way, for a few seconds at most."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        store = make_store(self._app)
        failing = False
        while not self._stopping.is_set():
            busy = False
            try:
                busy = self.sweep(store)
                failing = False
            except StoreError as exc:
                logger.log(
                    logging.DEBUG if failing else logging.ERROR, "%s; recovery waits for the store", exc
                )
                failing = True
            except Exception:  # the net below everything must not tear
                logger.exception("unexpected error, going on")
            if not busy:
                self._stopping.wait(self._interval)
        store.close()

    def sweep(self, store: Any) -> bool:
        """Look once and send what is due; true if there may be more at once."""
        found = store.sweep(self._name, ttl=_TTL, limit=_LIMIT)
        if not found.leader:
            return False
        for key in found.lost:
            logger.warning("recovering %s: its owner is gone", key)
        self._send(found.dispatches)
        if time.monotonic() - self._purged_at > _PURGE_EVERY:
            if store.purge(_PURGE) < _PURGE:  # else there is more: at the next look
                self._purged_at = time.monotonic()
        return bool(found.more)

    def _send(self, dispatches: Any) -> None:
        if not dispatches:
            return
        # An own connection: the application's pool belongs to the main thread, which forks.
        with self._app.connection_for_write() as connection:
            producer = self._app.amqp.Producer(connection, auto_declare=False)
            for dispatch in dispatches:
                if not dispatch.message:
                    continue
                try:
                    send(self._app, Envelope.loads(dispatch.message), producer=producer)
                    logger.info("sent %s again: %s", dispatch.key, dispatch.why)
                except Exception as exc:  # whatever a broker raises; its time comes again
                    logger.error("could not send %s (%s): %r", dispatch.key, dispatch.why, exc)


class DispatcherStep(bootsteps.StartStopStep):
    """Prepares a worker for guarded tasks and runs its dispatcher."""

    requires = {"celery.worker.components:Pool"}

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.dispatcher: Dispatcher | None = None
        app = parent.app
        self.enabled = bool(app.conf.get("guard_store")) and app.conf.get("guard_dispatcher", True)
        if app.conf.get("guard_store"):
            for name, task in app.tasks.items():
                if not name.startswith("celery."):
                    guarding(task)
            _check_store(app, parent)

    def include_if(self, parent: Any) -> bool:
        return self.enabled

    def start(self, parent: Any) -> None:
        self.dispatcher = Dispatcher(parent.app)
        self.dispatcher.start()

    def stop(self, parent: Any) -> None:
        if self.dispatcher is not None:
            self.dispatcher.stop()
            self.dispatcher = None

    terminate = stop


def _check_store(app: Any, worker: Any) -> None:
    """Warn about a store that may lose what it is told; refuse one that cannot work in this worker."""
    store = make_store(app)
    try:
        if getattr(store, "shared", True) is False and "prefork" in str(worker.pool_cls):
            raise StoreConfigurationError(
                "guard_store memory:// is not shared between the processes of a prefork pool: use redis:// or "
                "django://, or for a single process --pool=solo or --pool=threads"
            )
        for warning in store.check():
            logger.warning("%s", warning)
    except StoreConfigurationError:
        raise
    except StoreError as exc:
        logger.error("%s; the worker starts, guarded tasks do as on_store_error says", exc)
    finally:
        store.close()
