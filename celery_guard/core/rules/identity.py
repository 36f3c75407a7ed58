"""Which execution a trigger means: the one that stands, the one that answers, or the next one of its key."""

from __future__ import annotations

from ..contract import Mismatch, Reserved, Standing, Trigger
from ..states import REOPENABLE, State
from .record import Record, Unit
from .steps import move


def answers(record: Record, trigger: Trigger, now: int) -> bool:
    """Whether a final record is the outcome for this trigger."""
    if not record.state.final or record.keep_until is None or now >= record.keep_until:
        return False
    if trigger.reopen and record.state in REOPENABLE:
        return False
    if trigger.trigger_id == record.trigger_id or trigger.trigger_id in record.followers:
        return True
    if record.source == "misfire":
        # Beat noted that this due time is left out. A tick of another beat that is still under way, or a backfill,
        # brings it after all, and is not to find its end here.
        return trigger.source == "misfire"
    if trigger.source == "backfill" and record.state is not State.SUCCEEDED:
        return False  # a backfill makes up for everything that was not done, whatever became of it
    if record.once_per_key:
        return True
    if trigger.scheduled_at is not None and trigger.scheduled_at == record.scheduled_at:
        return True  # another beat's tick for the same due time, whatever became of it
    if record.state is not State.SUCCEEDED or record.finished_at is None:
        return False
    return now < record.finished_at + record.unique_for


def mismatch(record: Record, trigger: Trigger) -> bool:
    # A retry may change its own arguments; another trigger may not reuse the key for other ones.
    return record.trigger_id != trigger.trigger_id and record.fingerprint != trigger.fingerprint


def new_record(unit: Unit, trigger: Trigger, before: Record | None) -> Record:
    number = unit.now * 1000
    if before is not None:
        number = max(number, before.number + 1)
    record = Record(
        key=trigger.key,
        number=number,
        task=trigger.task,
        lock_key=trigger.lock_key,
        trigger_id=trigger.trigger_id,
        fingerprint=trigger.fingerprint,
        message=trigger.message,
        source=trigger.source,
        overlap=trigger.overlap,
        scheduled_at=trigger.scheduled_at,
        entry=trigger.entry,
        order=min(trigger.order or unit.now, unit.now),
        created_at=unit.now,
        previous=before.number if before else None,
        followers={name: text for name, text in before.followers.items() if text} if before else {},
    )
    record.followers.pop(trigger.trigger_id, None)
    set_options(record, trigger)
    return record


def set_options(record: Record, trigger: Trigger) -> None:
    record.lock_key = trigger.lock_key
    record.overlap = trigger.overlap
    record.lease = trigger.lease
    record.max_attempts = trigger.max_attempts
    record.keep = trigger.keep
    record.unique_for = trigger.unique_for
    record.once_per_key = trigger.once_per_key
    record.hold = trigger.hold
    record.slots = trigger.slots
    record.throttle = trigger.throttle
    record.throttle_failures = trigger.throttle_failures
    age = trigger.max_waiting_age
    record.start_by = earliest(trigger.start_by, None if age is None else record.order + age)


def earliest(*times: int | None) -> int | None:
    """Return the first of the times that are set."""
    return min((time for time in times if time is not None), default=None)


def reopened(unit: Unit, record: Record, trigger: Trigger) -> Record:
    move(unit, record, State.PENDING, "replayed")
    record.trigger_id, record.message, record.source = trigger.trigger_id, trigger.message, trigger.source
    record.lost_attempts = record.retries = record.sends = 0
    record.finished_at = record.keep_until = record.deadline = None
    record.not_before = record.put_off_since = None
    record.result = None
    return record


def reserve(unit: Unit, trigger: Trigger, resend_after: int) -> Reserved | Standing | Mismatch:
    """See :meth:`~celery_guard.core.contract.Store.reserve`."""
    unit.lock(trigger.lock_key)
    record = unit.load(trigger.key)
    if record is not None and (not record.state.final or answers(record, trigger, unit.now)):
        if mismatch(record, trigger):
            return Mismatch(trigger_id=record.trigger_id)
        return Standing(trigger_id=record.trigger_id, state=record.state)
    if record is not None and trigger.reopen and record.state in REOPENABLE:
        if mismatch(record, trigger):  # a replay is the same execution, so it has the same payload
            return Mismatch(trigger_id=record.trigger_id)
        record = reopened(unit, record, trigger)
    else:
        record = new_record(unit, trigger, record)
    record.due_at = unit.now + resend_after
    unit.save(record)
    return Reserved()


def withdraw(unit: Unit, key: str, trigger_id: str) -> bool:
    """See :meth:`~celery_guard.core.contract.Store.withdraw`."""
    record = unit.load(key)
    if record is None or record.trigger_id != trigger_id or record.state is not State.PENDING:
        return False
    if record.attempt or record.queued:
        return False
    for name, message in record.followers.items():
        if message:
            # It was told that the record keeps it, so the record goes on as its own.
            record.trigger_id, record.message = name, message
            del record.followers[name]
            record.due_at = unit.now
            unit.save(record)
            return True
    unit.delete(record)
    return True
