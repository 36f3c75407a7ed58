"""Beat: every tick carries its entry and due time, whatever the scheduler class.

The running scheduler's ``apply_async`` is wrapped once beat has made it, so plain beat, django-celery-beat and
RedBeat need no class of ours. The due time is the slot of the schedule, not the moment of sending: two beats
that are apart by any skew name the same slot, and the worker makes one execution of it.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from .publish import Tick, ticking


def follow(scheduler: Any) -> None:
    """Make a scheduler's ticks carry entry and due time. Doing it twice does nothing."""
    if getattr(scheduler, "_celery_guard", False):
        return
    scheduler._celery_guard = True
    original = scheduler.apply_async

    def apply_async(entry: Any, *args: Any, **kwargs: Any) -> Any:
        due = due_time(entry.schedule, entry.last_run_at, entry.schedule.now())
        with ticking(Tick(entry=str(entry.name)[:150], due=int(due.timestamp() * 1000))):
            return original(entry, *args, **kwargs)

    scheduler.apply_async = apply_async


def due_time(schedule: Any, last_run_at: datetime, now: datetime) -> datetime:
    """Return the slot that a tick at ``now`` stands for.

    An interval's slots are the multiples of its length since the epoch: two ticks of one beat are at least an
    interval apart, so they never share a slot, and two beats' ticks within a slot do. A crontab's or another
    calendar's slot is the latest one that is not in the future.
    """
    now = _aware(now)
    every = getattr(schedule, "run_every", None)
    if isinstance(every, timedelta) and type(schedule).__name__ == "schedule":
        length = every.total_seconds()
        if length <= 0:
            return now
        return datetime.fromtimestamp(math.floor(now.timestamp() / length) * length, UTC)
    clocked = getattr(schedule, "clocked_time", None)
    if isinstance(clocked, datetime):
        return _aware(clocked)
    return _latest_slot(schedule, _aware(last_run_at), now)


def _latest_slot(schedule: Any, last: datetime, now: datetime) -> datetime:
    slot = _next_after(schedule, last, now)
    for _ in range(1000):
        following = _next_after(schedule, slot, now)
        if following <= slot or following > now:
            break
        slot = following
    return slot.astimezone(UTC).replace(microsecond=0)


def _next_after(schedule: Any, moment: datetime, now: datetime) -> datetime:
    remaining: timedelta = schedule.remaining_estimate(moment)
    return _aware(schedule.now() if schedule.nowfun else now) + remaining


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
