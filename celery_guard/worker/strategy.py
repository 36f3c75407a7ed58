"""Which of a worker's two ways a message goes: guarded, acknowledged late; or as the task always was."""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request
from celery.worker.strategy import default as celery_default

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


class _Plain:
    """A task as it is without the guard."""

    Request = Request

    def __init__(self, task: Any) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def default(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Any:
    """Return Celery's default strategy, twice: a message with a ``guard`` header, and every message of a task
    that declares a guard, takes the late one."""
    late = celery_default(_Late(task), app, consumer, **kwargs)
    if declared(app, task, task.name) is not None:
        return late
    plain = celery_default(_Plain(task), app, consumer, **kwargs)

    def choose(message: Any, *args: Any, **options: Any) -> Any:
        way = late if HEADER in (message.headers or {}) else plain
        return way(message, *args, **options)

    return choose
