"""By when a first attempt has to start: Celery's ``expires`` and the guard's ``start_within`` as one time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict

from ..core.options import Guard, milliseconds
from .header import Header

#: Triggers that are late on purpose: a limit that counts from the due time would end them all.
_LATE = frozenset({"backfill", "replay"})


class Times(TypedDict):
    """A message's own times, in ms."""

    eta: int | None
    expires: int | None


def moment(value: Any) -> int | None:
    """Return a time of a Celery message in ms: ISO text or a datetime, naive ones are UTC as Celery reads them.
    ``None`` for what is no time; Celery itself refuses that."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)


def delay_of(headers: Mapping[str, Any]) -> int:
    """Return how long from now a message is due, in ms; 0 where it is due now or says nothing."""
    eta = moment(headers.get("eta"))
    return 0 if eta is None else max(eta - int(time.time() * 1000), 0)


def of_options(options: Mapping[str, Any], published_at: int) -> Times:
    """Return ``eta`` and ``expires`` of a publish in ms. There, numbers are seconds from now."""

    def read(value: Any) -> int | None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return published_at + int(value * 1000)
        return moment(value)

    return {
        "eta": read(options.get("countdown") or options.get("eta")),
        "expires": read(options.get("expires")),
    }


def start_by(guard: Guard, header: Header, *, eta: int | None, expires: int | None) -> int | None:
    """Return the time (ms) at which a first attempt is too late, ``None`` without a limit.

    ``start_within`` counts from the due time (not for a backfill or a replay), else from the ``eta``, else from
    the publishing. A message that was
    put off because the store was down has an ``eta`` of the guard's own; its first one is kept in the header.
    """
    limits = [expires]
    within = milliseconds(guard.start_within)
    if within is not None:
        put_off = header.deferrals > 0
        due = None if header.source in _LATE else header.due
        base = due or header.eta or (None if put_off else eta) or header.published_at
        if base:  # a message from a publisher without the guard says no time at all
            limits.append(base + within)
    return min((limit for limit in limits if limit is not None), default=None)
