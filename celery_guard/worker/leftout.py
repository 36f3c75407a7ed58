"""Due times that beat leaves out stay visible: a line in its log, and where the store is there, an expired execution
under the key that the tick would have had."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from celery.utils import uuid

from ..core.errors import GuardError
from ..core.options import Guard
from ..core.states import State
from . import slots
from .header import Header
from .identity import identify
from .misfire import Left
from .runtime import runtime_of

logger = logging.getLogger("celery_guard")


def note(app: Any, entry: Any, label: str, guard: Guard, left: Sequence[Left]) -> None:
    """Log each due time that is left out, and record it. Never raises: beat goes on.

    The record does not answer for anybody: a message for the due time that another beat has sent, or a backfill,
    still runs (see ``core.rules.identity.answers``). What is recorded already stays as it is.
    """
    task = app.tasks.get(entry.task)
    recording = task is not None
    oldest = None
    for item in left:
        logger.warning(
            "beat entry %r: due time %s is left out: %s",
            entry.name,
            slots.to_moment(item.due).isoformat(),
            item.reason,
        )
        if not recording:
            continue  # a task that beat has not imported: its keys need its signature
        try:
            store = runtime_of(app).store
            args, kwargs = arguments(entry)
            trigger = identify(
                app,
                task,
                entry.task,
                guard=guard,
                header=Header(source="misfire", entry=label, due=item.due, published_at=item.due),
                task_id=uuid(),
                args=args,
                kwargs=kwargs,
            )
            if oldest is None:
                oldest = store.now() - trigger.keep
            if item.due > oldest:  # of what is older, nobody knows any more whether another beat ran it
                store.end(trigger, state=State.EXPIRED, reason=item.reason)
        except Exception as exc:
            recording = False
            level = logging.WARNING if isinstance(exc, GuardError) else logging.ERROR
            logger.log(level, "beat entry %r: what is left out is not recorded: %s", entry.name, exc)


def arguments(entry: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an entry's arguments as a tick would send them."""
    from celery.beat import _evaluate_entry_args, _evaluate_entry_kwargs

    return tuple(_evaluate_entry_args(entry.args)), dict(_evaluate_entry_kwargs(entry.kwargs))
