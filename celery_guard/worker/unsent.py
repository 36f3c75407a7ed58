"""Ticks whose publish failed. Celery logs such a one and goes on to the next due time; here it is kept and sent
again, with its own due time, until the broker takes it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from celery.beat import SchedulingError
from kombu.exceptions import SerializationError, SerializerNotInstalled

from ..core.errors import GuardError
from . import slots

logger = logging.getLogger("celery_guard")

#: So many are kept in all; then the oldest is given up.
MOST = 1000
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: What the next try would meet again: options, keys, arguments, a serializer.
_HOPELESS = (
    *(GuardError, SerializationError, SerializerNotInstalled),
    *(TypeError, ValueError, LookupError, AttributeError),
)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One due time of an entry that waits for the broker. ``since`` is when the entry ran before it."""

    entry: Any
    since: Any
    due: int

    @property
    def name(self) -> str:
        return str(self.entry.name)


class Unsent:
    """Due times to be sent again, oldest first. ``send`` publishes one or raises."""

    def __init__(
        self, send: Callable[..., Any], *, clock: Callable[[], float] = time.monotonic, most: int = MOST
    ) -> None:
        self._send = send
        self._clock = clock
        self._most = most
        self._kept: dict[tuple[str, int], Kept] = {}
        self._pause = _FIRST_PAUSE
        self._again_at = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, entry: Any, since: Any, due: int, exc: BaseException) -> None:
        """Keep a due time that could not be published, unless the next try must fail alike."""
        when = slots.to_moment(due).isoformat()
        if _hopeless(exc):
            logger.error("beat entry %r: its due time %s is not sent: %s", entry.name, when, exc)
            return
        logger.warning(
            "beat entry %r: its due time %s could not be sent and will be again: %s", entry.name, when, exc
        )
        if not self._kept:
            self._pause = _FIRST_PAUSE
            self._again_at = self._clock()  # at the very next tick
        self._kept.setdefault((str(entry.name), due), Kept(entry=entry, since=since, due=due))
        if len(self._kept) > self._most:
            (name, oldest) = next(iter(self._kept))
            del self._kept[(name, oldest)]
            logger.error(
                "beat entry %r: its due time %s is given up, %d others wait for the broker; to run it: celery guard "
                "backfill",
                name,
                slots.to_moment(oldest).isoformat(),
                self._most,
            )

    def send(self) -> float | None:
        """Send what is kept if it is time; return the seconds until the next try, ``None`` if nothing is left."""
        if not self._kept:
            return None
        wait = self._again_at - self._clock()
        if wait > 0:
            return wait
        for key, kept in list(self._kept.items()):
            try:
                self._send(kept.entry, kept.due, None, {})
            except Exception as exc:
                if _hopeless(exc):
                    del self._kept[key]
                    logger.error("beat entry %r: a due time is not sent: %s", kept.name, exc)
                    continue
                # the broker is still away: one try says so for all
                self._again_at = self._clock() + self._pause
                pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
                logger.warning("%d due times wait for the broker: %s", len(self._kept), exc)
                return pause
            del self._kept[key]
            logger.info(
                "beat entry %r: due time %s sent late", kept.name, slots.to_moment(kept.due).isoformat()
            )
        return None

    def first_of_each(self) -> Iterator[Kept]:
        """Yield the oldest one of each entry."""
        names = set()
        for (name, _), kept in self._kept.items():
            if name not in names:
                names.add(name)
                yield kept


def _hopeless(exc: BaseException) -> bool:
    """Whether the publish failed of a mistake. Celery's beat wraps what was raised; kombu's OperationalError, whatever
    it stands for, is none."""
    cause = exc.__context__ if isinstance(exc, SchedulingError) and exc.__context__ else exc
    return isinstance(cause, _HOPELESS) and not isinstance(cause, OSError)
