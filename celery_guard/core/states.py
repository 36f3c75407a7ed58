"""States of an execution and the moves between them, as data.

A move that is not in :data:`TRANSITIONS` is refused by every store; the table is the single source for
the memory and SQL stores, and the conformance suite holds the Redis scripts to it.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where an execution stands. A :class:`str`, so it goes into JSON and SQL as it is."""

    PENDING = "pending"
    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    UNCERTAIN = "uncertain"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    COALESCED = "coalesced"
    REPLACED = "replaced"
    LOCK_TIMEOUT = "lock_timeout"
    EXPIRED = "expired"
    REVOKED = "revoked"
    DEAD = "dead"

    @property
    def final(self) -> bool:
        """Whether the execution has its one outcome."""
        return self in FINAL


_S = State

#: States with no way out but an explicit replay.
FINAL = frozenset(
    {
        _S.SUCCEEDED,
        _S.FAILED,
        _S.SKIPPED,
        _S.COALESCED,
        _S.REPLACED,
        _S.LOCK_TIMEOUT,
        _S.EXPIRED,
        _S.REVOKED,
        _S.DEAD,
    }
)

#: Final states that an explicit replay opens again, as the same execution.
REOPENABLE = frozenset({_S.FAILED, _S.DEAD, _S.LOCK_TIMEOUT})

TRANSITIONS: dict[State, frozenset[State]] = {
    # recorded, its message is on its way; a payload that cannot be started fails without an attempt
    _S.PENDING: frozenset(
        {
            _S.RUNNING,
            _S.WAITING,
            _S.SKIPPED,
            _S.COALESCED,
            _S.EXPIRED,
            _S.REVOKED,
            _S.FAILED,
        }
    ),
    # parked in the store; pending once the lock is free and its message is sent again
    _S.WAITING: frozenset(
        {
            _S.PENDING,
            _S.RUNNING,
            _S.COALESCED,
            _S.SKIPPED,
            _S.LOCK_TIMEOUT,
            _S.EXPIRED,
            _S.REVOKED,
        }
    ),
    # an attempt holds the lease
    _S.RUNNING: frozenset(
        {
            _S.SUCCEEDED,
            _S.FAILED,
            _S.RETRYING,
            _S.INTERRUPTED,
            _S.LOST,
            _S.REPLACED,
            _S.UNCERTAIN,
            _S.REVOKED,
        }
    ),
    # the task asked for a retry
    _S.RETRYING: frozenset(
        {
            _S.RUNNING,
            _S.WAITING,
            _S.SKIPPED,
            _S.COALESCED,
            _S.LOCK_TIMEOUT,
            _S.EXPIRED,
            _S.REVOKED,
        }
    ),
    # stopped at a checkpoint; goes on from there, here or elsewhere; skipped where
    # `skip` finds the lock taken by a newcomer meanwhile, as for lost
    _S.INTERRUPTED: frozenset(
        {_S.RUNNING, _S.WAITING, _S.SKIPPED, _S.COALESCED, _S.REPLACED, _S.EXPIRED, _S.REVOKED}
    ),
    # the owner stopped renewing, or its parent saw it die; expired where the message's
    # own `expires` passed before the next attempt could start
    _S.LOST: frozenset(
        {
            _S.RUNNING,
            _S.WAITING,
            _S.SKIPPED,
            _S.COALESCED,
            _S.REPLACED,
            _S.DEAD,
            _S.EXPIRED,
            _S.REVOKED,
        }
    ),
    # an effect's fate is unknown; a person or a reconciliation decides
    _S.UNCERTAIN: frozenset({_S.PENDING, _S.SUCCEEDED, _S.FAILED, _S.REVOKED}),
    # final: only an explicit replay opens failed, dead and lock_timeout again
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset({_S.PENDING}),
    _S.SKIPPED: frozenset(),
    _S.COALESCED: frozenset(),
    _S.REPLACED: frozenset(),
    _S.LOCK_TIMEOUT: frozenset({_S.PENDING}),
    _S.EXPIRED: frozenset(),
    _S.REVOKED: frozenset(),
    _S.DEAD: frozenset({_S.PENDING}),
}


def may_move(old: State, new: State) -> bool:
    """Say whether ``old -> new`` is a row of the table."""
    return new in TRANSITIONS[old]
