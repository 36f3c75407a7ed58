"""A second trigger while the lock is held: the policies."""

from __future__ import annotations

from ..contract import Answered, Begun, Dispatch, Parked, Trigger
from ..options import Overlap
from ..states import State
from .grant import start
from .identity import set_options
from .record import Lock, Record, Unit
from .steps import LOOK_AGAIN, end_passively, holder_of, move, notices, wake


def second_trigger(
    unit: Unit,
    lock: Lock,
    record: Record,
    trigger: Trigger,
    owner: str,
    retries: int,
    holder: Record | None,
) -> Begun:
    """The lock is held, or promised to the head of the queue: apply the policy."""
    set_options(record, trigger)
    record.message, record.retries = trigger.message, retries
    head = unit.head(lock.lock_key)
    blocker = holder or head
    assert blocker is not None
    if trigger.overlap is Overlap.REPLACE and holder is not None:
        return replace_holder(unit, lock, record, trigger, owner, retries, holder)
    if trigger.overlap is Overlap.COALESCE:
        return coalesce(unit, lock, record, head, blocker)
    if trigger.overlap in (Overlap.WAIT, Overlap.QUEUE):
        ahead = unit.queued(lock.lock_key)
        if record.queued:
            if record.state is not State.WAITING:
                park(unit, record, trigger)
            return Begun(answer=Parked(ahead=ahead - 1))
        if trigger.max_queue is not None and record.attempt == 0 and ahead >= trigger.max_queue:
            return turned(unit, record, State.SKIPPED, f"the queue is full ({ahead} waiting)", blocker.key)
        park(unit, record, trigger)
        return Begun(answer=Parked(ahead=ahead))
    return turned(unit, record, State.SKIPPED, f"held by {blocker.key}", blocker.key)


def park(unit: Unit, record: Record, trigger: Trigger) -> None:
    move(unit, record, State.WAITING, "the lock is held")
    record.queued = True
    if record.deadline is None and trigger.wait_for is not None:
        record.deadline = unit.now + trigger.wait_for
    record.due_at = min(record.deadline or unit.now + LOOK_AGAIN, unit.now + LOOK_AGAIN)
    unit.save(record)


def turned(unit: Unit, record: Record, state: State, reason: str, by: str) -> Begun:
    move(unit, record, state, reason, by)
    dispatches = list(notices(unit, record))
    unit.save(record)
    return Begun(
        answer=Answered(state=state, reason=reason, result=None, trigger_id=record.trigger_id, by=by),
        dispatches=dispatches,
    )


def coalesce(unit: Unit, lock: Lock, record: Record, head: Record | None, blocker: Record) -> Begun:
    """One trailing run, the newest trigger's. ``head`` is the one that waits so far, if any."""
    if head is not None and head.key == record.key:
        head = None
    newer = head or blocker
    if newer.order > record.order:
        return turned(unit, record, State.COALESCED, f"{newer.key} is newer and stands for it", newer.key)
    dispatches: list[Dispatch] = []
    if head is not None:
        dispatches = end_passively(
            unit, head, State.COALESCED, f"{record.key} is newer and stands for it", record.key
        )
    if record.state is not State.WAITING:
        move(unit, record, State.WAITING, "one run follows the running one")
    record.queued = True
    record.due_at = unit.now + LOOK_AGAIN
    unit.save(record)
    if holder_of(unit, lock) is None:
        dispatches.extend(wake(unit, lock))
    return Begun(answer=Parked(ahead=0), dispatches=dispatches)


def replace_holder(
    unit: Unit, lock: Lock, record: Record, trigger: Trigger, owner: str, retries: int, holder: Record
) -> Begun:
    if holder.order > record.order:  # a late or lost one does not replace its successor
        return turned(unit, record, State.SKIPPED, f"{holder.key} is newer and holds the lock", holder.key)
    dispatches: list[Dispatch] = []
    if holder.state is State.RUNNING:
        dispatches = end_passively(unit, holder, State.REPLACED, f"{record.key} took its place", record.key)
    else:
        dispatches = end_passively(unit, holder, State.SKIPPED, f"{record.key} took its place", record.key)
    begun = start(unit, lock, record, trigger, owner, retries)
    return Begun(answer=begun.answer, dispatches=dispatches)
