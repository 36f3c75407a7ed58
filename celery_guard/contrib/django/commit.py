"""Whether the caller is in a transaction, and what to do when it commits.

These look at the **caller's** connection; the store never uses it.
"""

from __future__ import annotations

from collections.abc import Callable

from django.db import transaction


def in_transaction(using: str | None = None) -> bool:
    """Say whether this thread has a transaction open on the alias, so that a roll-back may still come."""
    connection = transaction.get_connection(using)
    return connection.in_atomic_block or not connection.get_autocommit()


def on_commit(callback: Callable[[], object], using: str | None = None) -> None:
    """Call ``callback`` once the transaction of this thread is committed, never if it is rolled back, and at
    once where there is none."""
    transaction.on_commit(callback, using=using)
