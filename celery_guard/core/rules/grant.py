"""The lease: owner, token and expiry, handed out."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import Acquired, Begun, Lease, Trigger
from ..options import Overlap
from ..states import State
from .identity import set_options
from .record import Lock, Record, Unit
from .steps import move


def acquired_by(record: Record) -> Acquired:
    assert record.owner is not None
    assert record.token is not None
    assert record.expires_at is not None
    lease = Lease(
        key=record.key, lock_key=record.lock_key, owner=record.owner, token=record.token, lease=record.lease
    )
    return Acquired(
        lease=lease, attempt=record.attempt, expires_at=record.expires_at, checkpoint=record.checkpoint
    )


def start(
    unit: Unit,
    lock: Lock,
    record: Record,
    trigger: Trigger,
    owner: str,
    retries: int,
    beside: Sequence[Record] = (),
) -> Begun:
    """Hand out the lease; ``beside`` are the others that hold the lock by living leases."""
    # The token follows the clock in microseconds, so it grows even where the store forgot the last one; and it
    # grows by one at least, so it does within a clock tick and after the clock was set back.
    lock.token = max(lock.token + 1, unit.now * 1000)
    if trigger.overlap is not Overlap.ALLOW:
        lock.holders = [holder.key for holder in beside if holder.key != record.key] + [record.key]
    unit.save_lock(lock)
    set_options(record, trigger)
    move(unit, record, State.RUNNING)
    record.queued = False
    record.message, record.retries = trigger.message, retries
    record.owner, record.token = owner, lock.token
    record.attempt += 1
    record.sends = 0
    record.not_before = record.put_off_since = None
    record.deadline = None  # should it wait once more, it may wait as long again
    record.started_at = unit.now
    record.expires_at = record.due_at = unit.now + record.lease
    unit.save(record)
    return Begun(answer=acquired_by(record))
