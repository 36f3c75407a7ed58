"""The due times of a schedule: which one a tick stands for, and all of them in a range.

A due time is named by the schedule and the clock alone, never by when a beat happened to start or what it
remembers, so that all beats name one alike. Times are whole milliseconds since the epoch.

=============  ==========================================================================================
schedule       its due times
=============  ==========================================================================================
interval       the multiples of its length since the epoch; ``relative``: the clock's full days, hours, ...
crontab        the wall-clock times it matches, each once: one that a clock change repeats is its first
               occurrence, one that a clock change leaves out is as many minutes after the gap
solar          the events, to the second, computed from midnight UTC of their day
clocked        its one time
others         what ``remaining_estimate`` says, to the second
=============  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.schedules import crontab, schedule, solar
from celery.utils.time import delta_resolution

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: How far back the latest due time is looked for: leap days are eight years apart around 2100.
_LOOK_BACK = timedelta(days=9 * 366)


def to_ms(moment: datetime) -> int:
    """Return a moment in ms, rounded down. A naive one is UTC, as Celery reads it."""
    return (aware(moment) - _EPOCH) // timedelta(milliseconds=1)


def to_moment(ms: int) -> datetime:
    """Return ms as an aware datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)


def aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def interval(of: Any) -> int | None:
    """Return the length of an interval schedule in microseconds, ``None`` for other schedules."""
    every = getattr(of, "run_every", None)
    if not isinstance(of, schedule) or not isinstance(every, timedelta) or every < _MICROSECOND:
        return None
    return every // _MICROSECOND


def latest(of: Any, moment: datetime) -> int | None:
    """Return the latest due time that is not after ``moment``; ``None`` where there is none."""
    # arithmetic in a zone would forget which of two equal hours it is in
    moment = aware(moment).astimezone(UTC)
    if interval(of) is not None:
        return _interval_slot(of, moment)
    clocked = getattr(of, "clocked_time", None)
    if isinstance(clocked, datetime):
        return to_ms(clocked) if aware(clocked) <= moment else None
    for start in _starts(of, moment):
        found = None
        for slot in _chain(of, start, moment):
            found = slot
        if found is not None:
            return _name(of, found)
    return None


def between(of: Any, after: int, until: int) -> Iterator[int]:
    """Yield the due times in ``(after, until]``, oldest first, each once."""
    length = interval(of)
    clocked = getattr(of, "clocked_time", None)
    if isinstance(clocked, datetime):
        if after < to_ms(clocked) <= until:
            yield to_ms(clocked)
        return
    if length is not None and not of.relative:
        # by number, because a length need not be whole milliseconds
        number = after * 1000 // length
        while (slot := number * length // 1000) <= until:
            if slot > after:
                yield slot
            number += 1
        return
    begin = to_moment(after)
    if isinstance(of, solar):  # as `latest` names them: each from midnight of its own day
        begin = begin.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    elif isinstance(of, crontab):
        begin -= timedelta(hours=3)  # a repeated wall-clock time is named by its first occurrence
    seen = after
    for moment in _chain(of, begin, to_moment(until) + timedelta(hours=3)):
        name = _interval_slot(of, moment) if length is not None else _name(of, moment)
        if seen < name <= until:
            seen = name
            yield name


def following(of: Any, moment: datetime) -> int | None:
    """Return the first due time after ``moment``; ``None`` where there is none."""
    after = to_ms(moment)
    reach = timedelta(hours=1)
    while reach < _LOOK_BACK:
        found = next(between(of, after, after + reach // timedelta(milliseconds=1)), None)
        if found is not None:
            return found
        reach *= 8
    return None


# --- one schedule's arithmetic --------------------------------------------------------------------------


def _interval_slot(of: Any, moment: datetime) -> int:
    """The slot of an interval's tick that a scheduler *reserved* at ``moment``.

    No two ticks of one beat share one, whatever their jitter: the scheduler is due only when an interval has gone
    by since it reserved the tick before, so two reservations are at least one length apart::

        reserved        r1 ------------- at least one length ------------- r2
        published          ^ late, by a pause                              ^ in time: less than one length apart

    That holds for the moments of reservation, which is why those are named, and not for those of publishing.
    """
    length = interval(of)
    assert length is not None
    if getattr(of, "relative", False):
        # Celery rounds the deadline of a relative schedule down, so its ticks may be nearer than its length.
        if of.run_every >= timedelta(minutes=1):
            local = moment.astimezone(of.tz)
            return to_ms(delta_resolution(local, of.run_every).replace(microsecond=0))
        length = max(length // 1_000_000, 1) * 1_000_000
    number = (moment - _EPOCH) // _MICROSECOND // length
    return number * length // 1000


def _name(of: Any, slot: datetime) -> int:
    """A calendar's due time in ms. A wall-clock time that the end of summer time repeats is one due time, whichever
    of the two a beat came upon: Celery's own beat runs it once, and one that was restarted in between would again."""
    if isinstance(of, crontab):
        slot = slot.astimezone(of.tz).replace(fold=0).astimezone(UTC)
    return to_ms(slot.replace(microsecond=0))


def _starts(of: Any, moment: datetime) -> Iterator[datetime]:
    """Moments ever further back, from which the latest due time is looked for."""
    if isinstance(of, solar):
        # Where an event lies depends, by fractions of a second, on where the computation starts.
        midnight = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        for days in range(366 * 2):
            yield midnight - timedelta(days=days)
        return
    back = timedelta(minutes=1)
    while back < _LOOK_BACK:
        yield moment - back
        back *= 2


def _chain(of: Any, start: datetime, until: datetime) -> Iterator[datetime]:
    """The due times after ``start`` and up to ``until``, one from the other."""
    if isinstance(of, solar):
        yield from _solar_chain(of, start, until)
        return
    slot = start
    while True:
        upcoming = _next_after(of, slot)
        if upcoming is None or upcoming <= slot or upcoming > until:
            return
        slot = upcoming
        yield slot


def _solar_chain(of: Any, start: datetime, until: datetime) -> Iterator[datetime]:
    """The events from a midnight on, each computed from its own day's midnight, so that all beats have it to the
    same second. A day may have two: the second one is computed from an hour after the first."""
    day, hour = timedelta(days=1), timedelta(hours=1)
    midnight, last = start, start - day
    while midnight <= until:
        event = _next_after(of, midnight)
        if event is None or event > until:
            return
        midnight = event.replace(hour=0, minute=0, second=0, microsecond=0)
        if event > last + hour:
            last = event
            yield event
        second = _next_after(of, event + hour)
        midnight += day
        if second is not None and second < midnight and second <= until:
            last = second
            yield second


def _next_after(of: Any, moment: datetime) -> datetime | None:
    """The first due time after ``moment`` by the schedule's own answer, which says how long from *its* now: its clock
    stands at ``moment``, in its own zone. (Celery 5.5 reads hours in the zone it is given, and takes a past moment for
    one of another hour.)"""
    local = moment.astimezone(of.tz)
    stopped = object.__new__(type(of))  # not copy(): RedBeat's rrule cannot be copied
    stopped.__dict__.update(of.__dict__)
    stopped.nowfun = lambda: local
    if isinstance(of, crontab):  # Celery 5.5 answers in hours of the wall clock, later ones in real ones
        start, step, _ = stopped.remaining_delta(local)
        upcoming: datetime = start + step
        return upcoming.astimezone(UTC)
    remaining = stopped.remaining_estimate(local)
    return None if remaining is None else moment.astimezone(UTC) + remaining
