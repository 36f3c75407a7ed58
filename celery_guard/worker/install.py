"""Putting the guard into an application. Done by itself when a :class:`GuardedTask` is bound or the ``celery``
command finds ``guard_store`` set; doing it twice does nothing."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from celery import signals

_installed: WeakSet[Any] = WeakSet()


def install(app: Any) -> None:
    """Guard ``app``: its publishing, its workers, its beat.

    Call it where a project guards tasks by the setting ``guard_tasks`` or by beat options alone and starts
    Celery in other ways than by the ``celery`` command.
    """
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    if app in _installed:
        return
    _installed.add(app)
    from .dispatcher import DispatcherStep
    from .publish import GuardedSendTask
    from .visibility import VisibilityStep

    app.send_task = GuardedSendTask(app, app.send_task)
    app.steps["worker"].add(DispatcherStep)
    app.steps["consumer"].add(VisibilityStep)
    signals.beat_init.connect(_beat_started, weak=False, dispatch_uid="celery_guard.beat")
    signals.beat_embedded_init.connect(_beat_started, weak=False, dispatch_uid="celery_guard.embedded_beat")


def _beat_started(sender: Any, **kwargs: Any) -> None:
    from .beat import follow

    follow(sender.scheduler)
