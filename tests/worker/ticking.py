"""Celery's own beat on a clock that tests set: the scheduler, its heap and its schedules are the real ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.beat import Scheduler

from celery_guard.worker.beat import follow

from .deliveries import Fleet


class Beat:
    """A followed scheduler of a fleet's application. ``run(until)`` ticks as the beat service does, and sleeps by
    moving the clock on. ``lag()`` says how many seconds the machine takes for each step, beside the sleep."""

    def __init__(
        self,
        fleet: Fleet,
        schedule: dict[str, Any],
        start: datetime,
        *,
        last: datetime | None = None,
        lag: Callable[[], float] = lambda: 0.002,
        max_interval: float = 300,
    ) -> None:
        self.fleet = fleet
        self.now = start
        self._lag = lag
        self.scheduler = Scheduler(fleet.app, lazy=True, max_interval=max_interval)
        for name, entry in schedule.items():
            self.put(name, last=last, **entry)
        follow(self.scheduler)

    def put(self, name: str, *, last: datetime | None = None, **entry: Any) -> None:
        """Add an entry, or put it in place of the one of this name."""
        made = self.scheduler.Entry(name=name, app=self.fleet.app, **entry)
        made.schedule.nowfun = self.time
        made.last_run_at = last or self.now
        self.scheduler.schedule[name] = made

    def time(self) -> datetime:
        return self.now.astimezone(self.fleet.app.timezone)

    def step(self) -> None:
        self.now += timedelta(seconds=self._lag())
        pause = self.scheduler.tick()
        self.now += timedelta(seconds=max(pause or 0, 0))

    def run(self, until: datetime) -> None:
        while self.now < until:
            self.step()


def header(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = message.headers["guard"]
    return found


def dues(messages: list[Any]) -> list[datetime]:
    """The due times that messages carry."""
    return [datetime.fromtimestamp(header(message)["due"] / 1000, UTC) for message in messages]
