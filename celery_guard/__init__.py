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
    from .worker.backfill import backfill
    from .worker.schedules import schedules

__version__ = "0.1.0"

#: name -> the module that has it, loaded when it is first asked for
_LAZY = {
    "GuardedTask": "worker",
    "backfill": "worker.backfill",
    "install": "worker",
    "outcome_of": "worker",
    "schedules": "worker.schedules",
    "store_of": "worker",
}

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
    "backfill",
    "install",
    "outcome_of",
    "schedules",
    "store_of",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
