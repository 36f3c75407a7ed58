"""Beat: every tick carries its entry and due time, whatever the scheduler class, and none gets lost.

The running scheduler is followed, not replaced: its ``reserve``, ``apply_async``, ``tick`` and ``close`` are wrapped
once beat has made it, so plain beat, django-celery-beat and RedBeat need no class of ours.

    tick --> is it due? --> reserve --> apply_async --> the broker
               |               |            |
               |               |            fails: the same due time again, from the next tick on
               |               this moment names the due time
               the due times passed since the last run are missed: the entry's ``misfire`` decides
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from ..core.errors import GuardError
from ..core.options import Guard
from . import misfire, slots
from .header import HEADER, Header, read
from .identity import resolve
from .leftout import note
from .publish import Tick, ticking
from .unsent import Unsent

logger = logging.getLogger("celery_guard")

#: Seconds that beat rests after a tick that only repeated the one before.
_REPEATED_PAUSE = 1.0


def follow(scheduler: Any) -> None:
    """Make a scheduler's ticks carry entry and due time. Doing it twice does nothing."""
    if getattr(scheduler, "_celery_guard", None) is None:
        scheduler._celery_guard = Follower(scheduler)


def label(name: Any) -> str:
    """Return an entry's name as a message carries it: printable, and short enough for a key."""
    text = str(name)
    printable = "".join(c if c.isprintable() else "?" for c in text)
    if printable == text and 0 < len(text) <= 150:
        return text
    return f"{printable[:117]}~{sha256(text.encode('utf-8', 'replace')).hexdigest()[:32]}"


def options_of(app: Any, entry: Any) -> tuple[Guard | None, Header | None]:
    """Return the guard options in force for an entry and its own header. Raises
    :class:`~celery_guard.core.errors.OptionError`; no guard: nothing known here guards the task."""
    from .publish import _header

    options = entry.options or {}
    where = f"beat entry {entry.name!r}"
    carried = (options.get("headers") or {}).get(HEADER)
    header = read(carried, f"headers of {where}") if carried is not None else None
    header = _header(entry.task, options.get("guard"), header.data() if header else None, where=where)
    return resolve(app, app.tasks.get(entry.task), entry.task, header), header


@dataclass(frozen=True, kw_only=True)
class _Last:
    """The last tick of an entry in this process."""

    schedule: Any
    due: int
    fired: datetime


class Follower:
    """What this process knows of a scheduler's ticks. Works in beat's one thread."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._apply = scheduler.apply_async
        self._reserve = scheduler.reserve
        self._fired: dict[str, datetime] = {}
        self._last: dict[str, _Last] = {}
        self._repeated = False
        self.unsent = Unsent(self._send)
        self._tick = scheduler.tick
        self._close = scheduler.close
        scheduler.apply_async, scheduler.reserve = self.apply_async, self.reserve
        scheduler.tick, scheduler.close = self.tick, self.close

    # -- in place of the scheduler's own -----------------------------------------------------------------

    def reserve(self, entry: Any) -> Any:
        reserved = self._reserve(entry)
        self._fired[entry.name] = reserved.last_run_at
        return reserved

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        """What could not be sent goes first; beat wakes up in time to try it again."""
        wait = self.unsent.send()
        self._repeated = False
        pause = self._tick(*args, **kwargs)
        if self._repeated and not pause:
            pause = _REPEATED_PAUSE
        return pause if wait is None or pause is None else min(pause, wait)

    def close(self) -> None:
        """What was not sent until the end is missed by the next beat, not forgotten."""
        for entry in self.unsent.first_of_each():
            try:
                _rewind(self._scheduler, entry)
            except Exception:
                logger.exception("beat entry %r: its unsent due times are not remembered", entry.name)
        self._close()

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        since = entry.last_run_at
        sent = self.reserve(entry) if advance else entry
        reserved = self._fired.pop(entry.name) if entry.name in self._fired else entry.schedule.now()
        fired = slots.aware(reserved)
        try:
            guard, _ = options_of(self._scheduler.app, entry)
        except GuardError as exc:
            # Celery would log a failed message; this says which entry, and that beat goes on without it.
            logger.error(
                "beat entry %r is not sent, mend its options (beat goes on with the others): %s",
                entry.name,
                exc,
            )
            return None
        last = self._last.get(entry.name)
        try:
            plan = self._plan(entry, guard, since, fired)
        except Exception:  # whatever a schedule of the user's raises
            logger.exception(
                "beat entry %r: no due time can be told from its schedule; it is sent with the time of this tick",
                entry.name,
            )
            plan = misfire.Plan(send=[slots.to_ms(fired)])
        if guard is not None and last is not None and list(plan.send) == [last.due]:
            # Celery computes a crontab's next time in the hour that the end of summer time repeats as one in the
            # hour before, so a beat that was started there finds it due again and again, without a pause.
            self._repeated = True
            return None
        self._tell(entry, guard, plan)
        result = None
        for due in plan.send:
            result = self._send_or_keep(sent, since, due, producer, kwargs, last=due == plan.send[-1])
        return result

    # -- one tick ----------------------------------------------------------------------------------------

    def _plan(self, entry: Any, guard: Guard | None, since: datetime | None, fired: datetime) -> misfire.Plan:
        last = self._last.get(entry.name)
        if last is not None and last.schedule != entry.schedule:
            last = None  # another schedule's due times say nothing about this one's
        if last is not None:
            since = last.fired
        elif since is not None:
            since = _not_before_start(entry, slots.aware(since))
        plan = misfire.plan(
            entry.schedule,
            guard=guard or Guard(),
            since=since,
            handled=last.due if last else None,
            fired=fired,
            grace=misfire.grace_of(self._scheduler.max_interval),
        )
        due = max([*plan.send, *(left.due for left in plan.left)])
        self._last[entry.name] = _Last(schedule=entry.schedule, due=due, fired=fired)
        if guard is None:  # what nothing known here guards keeps Celery's own way: one run, and no word
            return misfire.Plan(send=[due])
        return plan

    def _tell(self, entry: Any, guard: Guard | None, plan: misfire.Plan) -> None:
        if plan.over:
            logger.warning(
                "beat entry %r: %d more due times were missed than the %d that are looked at one by one; they are "
                "left out. To run them: celery guard backfill",
                entry.name,
                plan.over,
                misfire.MOST,
            )
        if guard is not None and plan.left:
            note(self._scheduler.app, entry, label(entry.name), guard, plan.left)

    def _send(self, entry: Any, due: int, producer: Any, kwargs: dict[str, Any]) -> Any:
        with ticking(Tick(entry=label(entry.name), due=due)):
            return self._apply(entry, producer=producer, advance=False, **kwargs)

    def _send_or_keep(
        self, entry: Any, since: Any, due: int, producer: Any, kwargs: dict[str, Any], *, last: bool
    ) -> Any:
        try:
            return self._send(entry, due, producer, kwargs)
        except Exception as exc:
            self.unsent.keep(entry, since, due, exc)
            if last:
                raise  # Celery logs it as it does without the guard
            return None


def _not_before_start(entry: Any, since: datetime) -> datetime:
    """django-celery-beat says of an entry with a ``start_time`` that it ran thirty years ago."""
    start = getattr(getattr(entry, "model", None), "start_time", None)
    return since if start is None else max(since, slots.aware(start) - timedelta(microseconds=1))


def _rewind(scheduler: Any, unsent: Any) -> None:
    """Let the scheduler remember that ``unsent`` did not run: in each one's own place."""
    if hasattr(unsent.entry, "reschedule"):  # RedBeat: in Redis
        unsent.entry.reschedule(last_run_at=unsent.since)
        return
    current = scheduler.schedule.get(unsent.entry.name)
    if current is None:
        return
    current.last_run_at = unsent.since
    if hasattr(current, "model"):  # django-celery-beat: in the table
        current.model.last_run_at = unsent.since
        scheduler._dirty.add(current.name)
