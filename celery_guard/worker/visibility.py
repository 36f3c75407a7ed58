"""Messages that this worker holds stay this worker's, on Redis as broker.

kombu hands out again what stands unacknowledged in its index for longer than the visibility timeout, also while
the worker that holds it is alive: long bodies and long countdowns get copied. This step sets the time of the
messages that this worker holds anew, three times a visibility timeout, and only where they still stand in the
index (``ZADD XX``): what was acknowledged or handed out in between stays so. A worker that dies or hangs stops
doing it, and the broker delivers again as ever.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import bootsteps

logger = logging.getLogger("celery_guard.visibility")

#: Tags in one command; a worker with a huge prefetch stays polite.
_CHUNK = 500


def refresh(connection: Any) -> int:
    """Refresh what every channel of a kombu connection holds; return how many tags were refreshed."""
    refreshed = 0
    for channel in list(getattr(connection, "channels", None) or ()):
        qos = getattr(channel, "_qos", None)
        if qos is None or not hasattr(channel, "unacked_index_key"):
            continue
        tags = _held(qos)
        for start in range(0, len(tags), _CHUNK):
            chunk = tags[start : start + _CHUNK]
            now = time.time()
            with channel.conn_or_acquire() as client:
                client.zadd(channel.unacked_index_key, dict.fromkeys(chunk, now), xx=True)
            refreshed += len(chunk)
    return refreshed


def _held(qos: Any) -> list[Any]:
    """Tags delivered to this channel and not acknowledged. The dict changes under us on pools with threads."""
    for _ in range(5):
        try:
            return [tag for tag in list(qos._delivered) if tag not in qos._dirty]
        except RuntimeError:
            continue
    return []


class VisibilityStep(bootsteps.StartStopStep):
    """Keeps a Redis broker from copying messages that this worker holds. Off with
    ``guard_hold_visibility = False``."""

    requires = {"celery.worker.consumer.tasks:Tasks"}

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._timer: Any = None
        self.enabled = bool(parent.app.conf.get("guard_hold_visibility", True))

    def start(self, parent: Any) -> None:
        transport = parent.connection.transport
        if getattr(transport, "driver_type", None) != "redis":
            return
        timeout = _visibility_timeout(transport)
        if not timeout:
            return
        interval = max(timeout / 3.0, 0.2)

        def tick() -> None:
            try:
                refresh(transport)
            except Exception as exc:  # the consumer handles a broken connection; copies are harmless
                logger.debug("could not refresh: %r", exc)

        self._timer = parent.timer.call_repeatedly(interval, tick, priority=10)
        logger.debug("holding messages visible to this worker every %.1f s", interval)

    def stop(self, parent: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    shutdown = stop


def _visibility_timeout(transport: Any) -> float | None:
    options = getattr(transport.client, "transport_options", None) or {}
    value = options.get("visibility_timeout")
    if value is None:
        value = getattr(transport.Channel, "visibility_timeout", None)
    try:
        return float(value) if value is not None else None
    except (TypeError, ValueError):
        return None
