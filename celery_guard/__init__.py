"""celery_guard: one outcome for one unit of work, on the Celery tasks and schedules that you have.

``GuardedTask`` is loaded when it is first asked for, so that importing this package loads none of celery,
redis or django.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .core.errors import (
    ConfigurationError,
    ExecutionDeadError,
    ExecutionExpiredError,
    ExecutionFailedError,
    ExecutionRevokedError,
    GuardError,
    KeyArgumentError,
    KeyTemplateError,
    LeaseLostError,
    LockTimeoutError,
    OptionError,
    OutcomeError,
    PayloadMismatchError,
    StoreConfigurationError,
    StoreError,
    StoreUnavailableError,
)
from .core.options import Guard, Overlap
from .core.states import State

if TYPE_CHECKING:
    from .worker import GuardedTask, install, outcome_of, store_of

__version__ = "0.1.0"

_LAZY = ("GuardedTask", "install", "outcome_of", "store_of")

__all__ = [
    "ConfigurationError",
    "ExecutionDeadError",
    "ExecutionExpiredError",
    "ExecutionFailedError",
    "ExecutionRevokedError",
    "Guard",
    "GuardError",
    "GuardedTask",
    "KeyArgumentError",
    "KeyTemplateError",
    "LeaseLostError",
    "LockTimeoutError",
    "OptionError",
    "OutcomeError",
    "Overlap",
    "PayloadMismatchError",
    "State",
    "StoreConfigurationError",
    "StoreError",
    "StoreUnavailableError",
    "install",
    "outcome_of",
    "store_of",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from . import worker

        return getattr(worker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
