"""Backfill: the due times of an entry in a past range, each as an execution of its own, with the entry's policies.

It can be stopped and started again: what succeeded is done, what still runs is waited for, and all else is sent. So it
is also the way to make up for what ``misfire`` left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from celery.utils import uuid

from ..core.contract import Execution, Store
from ..core.errors import ConfigurationError, StoreUnavailableError
from ..core.options import Guard
from ..core.states import State
from . import slots
from .beat import label, options_of
from .entries import chosen, entries_of, made
from .header import HEADER, Header
from .identity import identify
from .install import install
from .leftout import arguments
from .runtime import runtime_of

#: A range with more due times is more likely a slip of the pen.
MOST_DUES = 100_000
_POLL = 0.2
#: Polls in a row that may find no store.
_PATIENCE = 150


@dataclass(frozen=True, kw_only=True)
class Item:
    """One due time (ms), and what became of it.

    ``outcome`` is ``"done before"``, ``"succeeded"``, ``"failed"`` or ``"not run"`` (it ended without a body: skipped,
    coalesced, ...); in a dry run ``"would run"`` or ``"would wait"``; and ``"waiting"`` while it is under way.
    """

    due: int
    key: str
    outcome: str
    state: State | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """What a backfill did, or would do. ``items`` are in the order of their due times."""

    entry: str
    task: str
    dry_run: bool
    items: tuple[Item, ...]

    def count(self, outcome: str) -> int:
        return sum(item.outcome == outcome for item in self.items)

    @property
    def complete(self) -> bool:
        """Whether every due time of the range has succeeded (in a dry run: has already)."""
        return all(item.outcome in ("done before", "succeeded") for item in self.items)


def backfill(
    app: Any,
    entry_name: str,
    start: datetime,
    end: datetime,
    *,
    dry_run: bool = False,
    concurrency: int = 1,
    on_progress: Callable[[Item], None] | None = None,
    entries: Mapping[str, Any] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Backfill:
    """Run every due time of a beat entry in ``[start, end)`` that did not succeed yet; not those of the future.

    Naive datetimes are in the timezone of the app. No more than ``concurrency`` are under way at a time; workers do
    the work, and this call waits for them. ``on_progress`` is told of each due time when it is sent and when it
    ends. ``entries`` (name to entry or its mapping) are those of the configured scheduler by default. Raises
    :class:`~celery_guard.core.errors.ConfigurationError` for an unknown entry, a task that is not guarded or not
    imported here, and an impossible range.
    """
    if concurrency < 1:
        raise ConfigurationError(f"concurrency={concurrency!r} must be a whole number from 1")
    install(app)
    known = entries_of(app) if entries is None else {name: made(app, name, e) for name, e in entries.items()}
    entry = chosen(known, entry_name)
    job = _Job(app, entry, on_progress or (lambda item: None))
    dues = due_times(app, entry, start, end)
    if dry_run:
        items = [job.look(due) for due in dues]
    else:
        items = job.run(dues, concurrency, sleep)
    return Backfill(entry=entry.name, task=entry.task, dry_run=dry_run, items=tuple(items))


def due_times(app: Any, entry: Any, start: datetime, end: datetime) -> list[int]:
    """Return the due times (ms) of an entry in ``[start, end)`` that are not in the future."""
    start, end = (at if at.tzinfo is not None else at.replace(tzinfo=app.timezone) for at in (start, end))
    if start >= end:
        raise ConfigurationError(
            f"a backfill from {start.isoformat()} to {end.isoformat()} has no time in it: the end is excluded"
        )
    until = min(slots.to_ms(end) - 1, slots.to_ms(datetime.now(UTC)))
    found = list(islice(slots.between(entry.schedule, slots.to_ms(start) - 1, until), MOST_DUES + 1))
    if len(found) > MOST_DUES:
        raise ConfigurationError(
            f"entry {entry.name!r} has more than {MOST_DUES:,} due times from {start.isoformat()} to "
            f"{end.isoformat()}: backfill smaller ranges, one after the other"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class _Flying:
    item: Item
    #: the record that was there before; the end of a newer one is waited for
    before: int


class _Job:
    def __init__(self, app: Any, entry: Any, tell: Callable[[Item], None]) -> None:
        self.app = app
        self.entry = entry
        self.tell = tell
        self.store: Store = runtime_of(app).store
        self.task = app.tasks.get(entry.task)
        if self.task is None:
            raise ConfigurationError(
                f"task {entry.task!r} of beat entry {entry.name!r} is not imported here, so its keys cannot be "
                "made: run the backfill with the application that has it (celery -A ...)"
            )
        guard, header = options_of(app, entry)
        if guard is None:
            raise ConfigurationError(
                f"task {entry.task!r} of beat entry {entry.name!r} is not guarded, so nothing would know what is "
                "done: give it base=GuardedTask, or the entry options={'guard': {...}}"
            )
        self.guard: Guard = guard
        self.header = header or Header()
        self.args, self.kwargs = arguments(entry)

    def key(self, due: int) -> str:
        return identify(
            self.app,
            self.task,
            self.entry.task,
            guard=self.guard,
            header=self._header(due),
            task_id="",
            args=self.args,
            kwargs=self.kwargs,
        ).key

    def _header(self, due: int) -> Header:
        return replace(
            self.header,
            source="backfill",
            entry=label(self.entry.name),
            due=due,
            published_at=int(time.time() * 1000),
        )

    def look(self, due: int) -> Item:
        """What is known of a due time, and so what a backfill does."""
        key = self.key(due)
        found = self.store.get(key)
        if found is None:
            return Item(due=due, key=key, outcome="would run")
        if not found.state.final:
            return Item(due=due, key=key, outcome="would wait", state=found.state, reason=found.reason)
        done = found.state is State.SUCCEEDED and found.scheduled_at == due
        return Item(
            due=due,
            key=key,
            outcome="done before" if done else "would run",
            state=found.state,
            reason=found.reason,
        )

    def run(self, dues: list[int], concurrency: int, sleep: Callable[[float], None]) -> list[Item]:
        ended: dict[int, Item] = {}
        flying: dict[int, _Flying] = {}
        for due in dues:
            while len(flying) >= concurrency:
                self._land(flying, ended, sleep)
            item = self.look(due)
            if item.outcome == "done before":
                ended[due] = item
                self.tell(item)
                continue
            flying[due] = self._send(item)
            self.tell(flying[due].item)
        while flying:
            self._land(flying, ended, sleep)
        return [ended[due] for due in dues]

    def _send(self, item: Item) -> _Flying:
        found = self.store.get(item.key)
        before = found.number if found is not None else 0
        waiting = replace(item, outcome="waiting")
        if found is not None and not found.state.final:
            return _Flying(item=waiting, before=before - 1)
        options = {**(self.entry.options or {}), "task_id": uuid()}
        options.pop("guard", None)  # it is in the header
        headers = {**(options.pop("headers", None) or {}), HEADER: self._header(item.due).data()}
        result = self.task.apply_async(self.args, self.kwargs, headers=headers, **options)
        stands = result.id != options["task_id"]  # another trigger does: its execution, the one that is there
        return _Flying(item=waiting, before=before - 1 if stands else before)

    def _land(
        self, flying: dict[int, _Flying], ended: dict[int, Item], sleep: Callable[[float], None]
    ) -> None:
        """Wait until one at least has ended."""
        failures = 0
        while True:
            landed = False
            for due, one in list(flying.items()):
                try:
                    found = self.store.get(one.item.key)
                    failures = 0
                except StoreUnavailableError:
                    failures += 1
                    if failures > _PATIENCE:
                        raise
                    break
                item = _end(one, found)
                if item is not None:
                    landed = True
                    del flying[due]
                    ended[due] = item
                    self.tell(item)
            if landed:
                return
            sleep(_POLL)


def _end(one: _Flying, found: Execution | None) -> Item | None:
    """The item of an execution that has ended, ``None`` while it has not."""
    if found is None:
        return replace(one.item, outcome="failed", state=None, reason="its record is gone from the store")
    if found.number <= one.before or not found.state.final:
        return None
    if found.state is State.SUCCEEDED:
        outcome = "succeeded"
    elif found.state in (State.FAILED, State.DEAD, State.LOCK_TIMEOUT):
        outcome = "failed"
    else:
        outcome = "not run"
    return replace(one.item, outcome=outcome, state=found.state, reason=found.reason)
