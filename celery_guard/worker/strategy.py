"""Which of a worker's ways a message goes: guarded and acknowledged late; guarded and acknowledged early, because
the store has it; or as the task always was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.worker.request import Request
from celery.worker.strategy import default as celery_default
from kombu.utils.imports import symbol_by_name

from .header import HEADER
from .identity import declared
from .request import GuardedRequest


class _Late:
    """A task as guarded messages need it: acknowledged after the fact, given back when its process dies."""

    acks_late = True
    reject_on_worker_lost = True
    Request = GuardedRequest

    def __init__(self, task: Any) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


class _Early(_Late):
    """... and as a long body needs it whose trigger the store has: the broker need not wait for its end."""

    acks_late = False
    reject_on_worker_lost = False


class _Plain:
    """A task as it is without the guard."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self.Request = getattr(task, "plain_request", Request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def default(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Any:
    """Return Celery's default strategy, twice: a message with a ``guard`` header, and every message of a task
    that declares a guard, takes the late one; a recorded one of a task with ``acks_late=False`` the early one."""
    late = celery_default(_Late(task), app, consumer, **kwargs)
    guard = declared(app, task, task.name)
    if guard is not None and (task.acks_late or not guard.record):
        return late
    if guard is not None:
        early = celery_default(_Early(task), app, consumer, **kwargs)

        def by_record(message: Any, *args: Any, **options: Any) -> Any:
            way = early if _recorded(message) else late
            return way(message, *args, **options)

        return by_record
    own = symbol_by_name(getattr(task, "plain_strategy", celery_default))
    plain = own(_Plain(task), app, consumer, **kwargs)

    def by_header(message: Any, *args: Any, **options: Any) -> Any:
        way = late if _asks(message) else plain
        return way(message, *args, **options)

    return by_header


def _asks(message: Any) -> bool:
    """Whether a message asks for the guard: one that only says where it comes from does not."""
    header = (message.headers or {}).get(HEADER)
    return header is not None and not (isinstance(header, Mapping) and header.get("soft") is True)


def _recorded(message: Any) -> bool:
    header = (message.headers or {}).get(HEADER)
    return isinstance(header, Mapping) and header.get("rec") is True
