"""``celery -A PROJECT guard ...``: what the guard knows, from a terminal."""

from __future__ import annotations

from .commands import guard
from .schedules import backfill, schedules

guard.add_command(schedules)
guard.add_command(backfill)

__all__ = ["guard"]
