"""Where Celery is known: the task base, publishing, the worker's parts, beat."""

from __future__ import annotations

from .install import install
from .outcome import outcome_of
from .runtime import store_of
from .task import GuardedTask, Guarding

__all__ = ["GuardedTask", "Guarding", "install", "outcome_of", "store_of"]
