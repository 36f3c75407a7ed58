"""Where Celery is known: the task base, publishing, the worker's parts, beat."""

from __future__ import annotations

from . import publish as _publish  # options of every publish are carried from now on  # noqa: F401
from .install import install
from .outcome import outcome_of
from .runtime import store_of
from .task import GuardedTask, Guarding

__all__ = ["GuardedTask", "Guarding", "install", "outcome_of", "store_of"]
