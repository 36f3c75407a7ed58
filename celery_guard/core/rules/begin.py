"""What a delivered message means, and the lease."""

from __future__ import annotations

from ..contract import GENERATION, Answered, Begun, InFlight, Joined, Mismatch, Trigger
from ..options import Overlap
from ..states import REOPENABLE, State
from .grant import acquired_by, start
from .identity import answers, mismatch, new_record, reopened, set_options
from .overlap import second_trigger, turned
from .record import Lock, Record, Unit
from .steps import TOO_LATE, holders_of, lost_attempt, wake


def begin(unit: Unit, trigger: Trigger, owner: str, retries: int) -> Begun:
    """See :meth:`~celery_guard.core.contract.Store.begin`."""
    lock = unit.lock(trigger.lock_key)
    record = unit.load(trigger.key)
    if record is None or (
        record.state.final and (not answers(record, trigger, unit.now) or goes_on(record, trigger, retries))
    ):
        if record is not None and trigger.reopen and record.state in REOPENABLE:
            if mismatch(record, trigger):
                return Begun(answer=Mismatch(trigger_id=record.trigger_id))
            record = reopened(unit, record, trigger)
        else:
            record = new_record(unit, trigger, record)
        return acquire(unit, lock, record, trigger, owner, retries)
    if mismatch(record, trigger):
        return Begun(answer=Mismatch(trigger_id=record.trigger_id))
    if record.state.final:
        return Begun(answer=answer_for(unit, record, trigger))
    if record.trigger_id != trigger.trigger_id:
        if trigger.trigger_id not in record.followers:
            record.triggers += 1
        record.followers[trigger.trigger_id] = trigger.message
        unit.save(record)
        return Begun(answer=Joined(trigger_id=record.trigger_id))
    if retries < record.retries or record.state is State.UNCERTAIN:
        return Begun(answer=InFlight(state=record.state))
    if record.state is State.RUNNING:
        if record.owner == owner and record.alive(unit.now):
            return Begun(answer=acquired_by(record))
        if record.alive(unit.now):
            return Begun(answer=InFlight(state=record.state))
        held = lock if record.lock_key == lock.lock_key else unit.lock(record.lock_key)
        dispatches = lost_attempt(unit, held, record, "its lease ended")
        if record.lost_attempts >= record.max_attempts:  # dead
            return Begun(answer=answer_for(unit, record, trigger), dispatches=dispatches)
        begun = acquire(unit, lock, record, trigger, owner, retries)
        return Begun(answer=begun.answer, dispatches=[*dispatches, *begun.dispatches])
    return acquire(unit, lock, record, trigger, owner, retries)


def goes_on(record: Record, trigger: Trigger, retries: int) -> bool:
    """Whether this is what an ended execution's task was replaced by: the same id, with more to do."""
    own = record.trigger_id == trigger.trigger_id and record.state is State.SUCCEEDED
    return own and retries // GENERATION > record.retries // GENERATION


def answer_for(unit: Unit, record: Record, trigger: Trigger) -> Answered:
    if record.followers.get(trigger.trigger_id) or (
        record.due_at is not None and trigger.trigger_id == record.trigger_id
    ):
        if trigger.trigger_id in record.followers:
            record.followers[trigger.trigger_id] = ""
        # Where it ended passively its own message wants an answer too: only that one says that it has it.
        owed = trigger.trigger_id != record.trigger_id and record.state not in (State.SUCCEEDED, State.FAILED)
        if not owed and not any(record.followers.values()):
            record.due_at = None
        unit.save(record)
    return Answered(
        state=record.state,
        reason=record.reason,
        result=record.result,
        trigger_id=record.trigger_id,
        by=record.by,
    )


def acquire(unit: Unit, lock: Lock, record: Record, trigger: Trigger, owner: str, retries: int) -> Begun:
    if record.attempt == 0 and trigger.start_by is not None and unit.now >= trigger.start_by:
        return too_late(unit, lock, record, trigger)
    if trigger.overlap is Overlap.ALLOW:
        return start(unit, lock, record, trigger, owner, retries)
    holders = holders_of(unit, lock)
    if any(holder.key == record.key for holder in holders):
        return start(unit, lock, record, trigger, owner, retries, holders)  # kept between two tries
    room = trigger.slots - len(holders)
    heads = unit.heads(lock.lock_key, max(room, 1))
    closed = closed_to(unit, lock, record, trigger)
    if room > 0 and not closed and (len(heads) < room or any(head.key == record.key for head in heads)):
        return start(unit, lock, record, trigger, owner, retries, holders)
    begun = second_trigger(unit, lock, record, trigger, owner, retries, holders)
    # There is room and somebody waits, perhaps this one: a retry goes before those that the lock is closed to.
    dispatches = wake(unit, lock) if room > 0 else []
    return Begun(answer=begun.answer, dispatches=[*begun.dispatches, *dispatches])


def closed_to(unit: Unit, lock: Lock, record: Record, trigger: Trigger) -> bool:
    """Whether a first attempt may not start although there is room: throttled, or not yet debounced."""
    if record.attempt:
        return False
    if trigger.throttle and lock.quiet_until > unit.now:
        return True
    return trigger.debounce is not None and (record.not_before is None or record.not_before > unit.now)


def too_late(unit: Unit, lock: Lock, record: Record, trigger: Trigger) -> Begun:
    set_options(record, trigger)
    begun = turned(unit, record, State.EXPIRED, TOO_LATE, None)
    return Begun(answer=begun.answer, dispatches=[*begun.dispatches, *wake(unit, lock)])
