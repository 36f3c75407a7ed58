"""The schedule as data: what each beat entry should have done last, what became of it, and what is next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..core.contract import Execution, Store
from ..core.states import State
from . import slots
from .beat import label
from .entries import entries_of, made
from .runtime import runtime_of

#: How many executions are looked at, newest first.
LOOK_AT = 100_000


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """One entry. Times are ms since the epoch; ``None``: there is none, or nothing is recorded of it."""

    entry: str
    task: str
    schedule: str
    #: the latest due time that has passed, and what is recorded of it
    last_due: int | None
    last_state: State | None = None
    last_reason: str = ""
    #: the newest success: when it ended, and the due time that it was for
    last_success_at: int | None = None
    last_success_due: int | None = None
    next_due: int | None = None
    #: the newest due times that are recorded: (due, state, reason)
    recent: tuple[tuple[int, State, str], ...] = ()


def schedules(
    app: Any,
    *,
    entries: Mapping[str, Any] | None = None,
    scheduler: str | None = None,
    now: datetime | None = None,
    recent: int = 10,
) -> list[Scheduled]:
    """Return every entry, by name. ``entries`` (name to entry or its mapping) are those of the configured scheduler by
    default. Reads the store once; raises :class:`~celery_guard.core.errors.StoreUnavailableError`."""
    known = (
        entries_of(app, scheduler)
        if entries is None
        else {name: made(app, name, entry) for name, entry in entries.items()}
    )
    moment = now or datetime.now(UTC)
    store: Store = runtime_of(app).store
    recorded: dict[str, list[Execution]] = defaultdict(list)
    for execution in store.executions(limit=LOOK_AT):
        if execution.entry is not None:
            recorded[execution.entry].append(execution)
    return [_scheduled(known[name], recorded[label(name)], moment, recent) for name in sorted(known)]


def _scheduled(entry: Any, executions: Iterable[Execution], now: datetime, recent: int) -> Scheduled:
    by_due: dict[int, Execution] = {}
    success: Execution | None = None
    for execution in executions:
        if execution.scheduled_at is None:
            continue
        seen = by_due.get(execution.scheduled_at)
        if seen is None or seen.number < execution.number:
            by_due[execution.scheduled_at] = execution
        if execution.state is State.SUCCEEDED and (success is None or _ended(success) < _ended(execution)):
            success = execution
    due = slots.latest(entry.schedule, now)
    last = by_due.get(due) if due is not None else None
    newest = sorted(by_due, reverse=True)[:recent]
    return Scheduled(
        entry=entry.name,
        task=entry.task,
        schedule=str(entry.schedule).strip("<>"),
        last_due=due,
        last_state=last.state if last else None,
        last_reason=last.reason if last else "",
        last_success_at=success.finished_at if success else None,
        last_success_due=success.scheduled_at if success else None,
        next_due=slots.following(entry.schedule, now),
        recent=tuple((at, by_due[at].state, by_due[at].reason) for at in newest),
    )


def _ended(execution: Execution) -> tuple[int, int]:
    return execution.finished_at or 0, execution.scheduled_at or 0
