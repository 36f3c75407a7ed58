"""What a tick has to send, and what it leaves out: due times that passed while beat was down, or its entry off.

Nothing here reads a clock, a store or a broker. Times are ms since the epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..core.options import Guard, milliseconds
from . import slots

#: ``misfire="each"`` sends no more than so many at once, the newest; and no more are noted one by one.
MOST = 1000
#: How old a due time may be under ``misfire="each"`` where ``within`` says nothing.
EACH_WITHIN = 86_400_000
#: A tick is late when its due time is older than beat's longest sleep, and than this.
LEAST_GRACE = 5_000


@dataclass(frozen=True, kw_only=True)
class Left:
    """A due time that does not run, and why."""

    due: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Due times to send, oldest first, and those left out, oldest first."""

    send: Sequence[int]
    left: Sequence[Left] = ()
    #: how many due times were over :data:`MOST`: ``each`` does not send them, and they are not in ``left``
    over: int = 0


def grace_of(max_interval: Any) -> int:
    """Return how late (ms) a tick may be to be in time for a scheduler that sleeps for ``max_interval`` s."""
    try:
        return max(int(float(max_interval) * 1000), LEAST_GRACE)
    except (TypeError, ValueError, OverflowError):
        return LEAST_GRACE


def plan(
    schedule: Any, *, guard: Guard, since: datetime | None, handled: int | None, fired: datetime, grace: int
) -> Plan:
    """Return what a tick that was reserved at ``fired`` means.

    ``since`` is when the tick before was reserved (``None``: there was none), ``handled`` the due time that it stood
    for where that is known. What lies between is missed. The current slot of an interval never is; the latest due
    time of a calendar is when it is older than ``grace``.
    """
    now = slots.to_ms(fired)
    current = slots.latest(schedule, fired)
    if current is None:  # a schedule that is due without a due time: RedBeat sends a new entry at once
        return Plan(send=[now // 1000 * 1000])
    within = milliseconds(guard.within)
    if guard.misfire == "each" and within is None:
        within = EACH_WITHIN
    missed, over = _missed(schedule, since, handled, fired, current)
    late = slots.interval(schedule) is None and now - current > grace
    if guard.misfire == "skip":
        return _skip(missed, current, late, over)
    if guard.misfire == "each":
        return _each(missed, current, late, now, within or 0, over)
    return _once(missed, current, late, now, within, over)


def _missed(
    schedule: Any, since: datetime | None, handled: int | None, fired: datetime, current: int
) -> tuple[list[int], int]:
    """The due times before the current one that nobody here dealt with: the newest, and how many more."""
    if since is None:
        return [], 0
    length = slots.interval(schedule)
    if length is not None:
        # Ticks drift, so that every now and then a slot has none. One is missed when a whole interval went by
        # without a tick, and a second at least: below that a busy machine is no outage.
        gap = slots.to_ms(fired) - slots.to_ms(since)
        if gap < length // 1000 + max(length // 1000, 1000):
            return [], 0
    start = handled if handled is not None else slots.latest(schedule, since)
    newest: deque[int] = deque(maxlen=MOST)
    count = 0
    for slot in slots.between(schedule, slots.to_ms(since) if start is None else start, current - 1):
        newest.append(slot)
        count += 1
    return list(newest), count - len(newest)


def _skip(missed: list[int], current: int, late: bool, over: int) -> Plan:
    reason = "missed, and misfire='skip'"
    left = [Left(due=due, reason=reason) for due in missed]
    if late:
        return Plan(send=[], left=[*left, Left(due=current, reason=reason)], over=over)
    return Plan(send=[current], left=left, over=over)


def _once(missed: list[int], current: int, late: bool, now: int, within: int | None, over: int) -> Plan:
    left = [Left(due=due, reason="missed, and misfire='once' runs a later one") for due in missed]
    if late and within is not None and now - current > within:
        too_old = Left(due=current, reason=f"missed, and older than within={within / 1000:g} s")
        return Plan(send=[], left=[*left, too_old], over=over)
    return Plan(send=[current], left=left, over=over)


def _each(missed: list[int], current: int, late: bool, now: int, within: int, over: int) -> Plan:
    send, left = [], []
    for due in [*missed, current]:
        if now - due > within and (due != current or late):
            left.append(Left(due=due, reason=f"missed, and older than within={within / 1000:g} s"))
        else:
            send.append(due)
    return Plan(send=send, left=left, over=over)
