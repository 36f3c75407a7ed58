"""A second trigger while the lock is held: the policies."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import Answered, Begun, Dispatch, Parked, Trigger
from ..options import Overlap
from ..states import State
from .grant import start
from .identity import earliest, set_options
from .record import Lock, Record, Unit
from .steps import LOOK_AGAIN, end_passively, move, notices

#: Without a word of the user's, newer triggers put the trailing run off for a minute, or ten times the debounce.
MAX_DELAY = 60_000


def second_trigger(
    unit: Unit,
    lock: Lock,
    record: Record,
    trigger: Trigger,
    owner: str,
    retries: int,
    holders: Sequence[Record],
) -> Begun:
    """The lock is held, promised to the head of the queue, or closed for a while: apply the policy."""
    set_options(record, trigger)
    record.message, record.retries = trigger.message, retries
    if trigger.overlap is Overlap.REPLACE and len(holders) >= trigger.slots:
        return replace_holder(unit, lock, record, trigger, owner, retries, holders)
    if trigger.overlap is Overlap.COALESCE:
        return coalesce(unit, lock, record, trigger, holders)
    why, by = blocker_of(unit, lock, record, holders)
    if trigger.overlap in (Overlap.WAIT, Overlap.QUEUE):
        ahead = unit.queued(lock.lock_key)
        if record.queued:
            if record.state is not State.WAITING:
                park(unit, record, trigger)
            return Begun(answer=Parked(ahead=ahead - 1))
        if trigger.max_queue is not None and record.attempt == 0 and ahead >= trigger.max_queue:
            return turned(unit, record, State.SKIPPED, f"the queue is full ({ahead} waiting)", by)
        park(unit, record, trigger)
        return Begun(answer=Parked(ahead=ahead))
    return turned(unit, record, State.SKIPPED, why, by)


def blocker_of(unit: Unit, lock: Lock, record: Record, holders: Sequence[Record]) -> tuple[str, str | None]:
    """Say why there is no room, and who is in the way: a holder, who waits, or who closed the lock."""
    heads = holders or [head for head in unit.heads(lock.lock_key, 1) if head.key != record.key]
    if heads:
        return f"held by {heads[0].key}", heads[0].key
    return f"throttled after {lock.quiet_by}", lock.quiet_by


def park(unit: Unit, record: Record, trigger: Trigger) -> None:
    move(unit, record, State.WAITING, "the lock is held")
    record.queued = True
    if record.deadline is None and trigger.wait_for is not None:
        record.deadline = unit.now + trigger.wait_for
    record.due_at = look_again(unit, record)
    unit.save(record)


def look_again(unit: Unit, record: Record) -> int:
    """When the dispatcher has to look at a parked record: at its limits, and now and then. When the lock opens
    to those whose turn it is, :func:`wake` has put down with them; nobody else has to be looked at then."""
    # A later attempt may start after start_by; were it looked at for that, it would be due in every sweep.
    start_by = None if record.attempt else record.start_by
    return min(earliest(record.deadline, start_by) or unit.now + LOOK_AGAIN, unit.now + LOOK_AGAIN)


def turned(unit: Unit, record: Record, state: State, reason: str, by: str | None) -> Begun:
    move(unit, record, state, reason, by)
    dispatches = list(notices(unit, record))
    unit.save(record)
    return Begun(
        answer=Answered(state=state, reason=reason, result=None, trigger_id=record.trigger_id, by=by),
        dispatches=dispatches,
    )


def coalesce(unit: Unit, lock: Lock, record: Record, trigger: Trigger, holders: Sequence[Record]) -> Begun:
    """One trailing run, which starts after the newest trigger and has its arguments (or the oldest's).

    One that was put off for as long as it may be goes next, whoever comes: then the newcomer waits behind it.
    """
    delay = trigger.max_delay or max(MAX_DELAY, 10 * (trigger.debounce or 0))
    rivals = [
        rival
        for rival in unit.heads(lock.lock_key, 3)
        if rival.key != record.key and rival.overlap is Overlap.COALESCE
    ]
    if rivals and rivals[0].order <= record.order and overdue(unit, rivals[0], delay):
        del rivals[0]
    stands = rivals[-1] if rivals else None
    newer = stands or max(holders, key=lambda one: one.order, default=None)
    if newer is not None and newer.order > record.order:
        return turned(unit, record, State.COALESCED, f"{newer.key} is newer and stands for it", newer.key)
    if stands is not None and trigger.oldest and not record.attempt:
        put_off(unit, stands, trigger, delay, since=stands.put_off_since, free=not holders)
        stands.due_at = look_again(unit, stands) if stands.state is State.WAITING else stands.due_at
        unit.save(stands)
        return turned(unit, record, State.COALESCED, f"{stands.key} runs for it, too", stands.key)
    dispatches: list[Dispatch] = []
    if not record.attempt and not record.queued:
        put_off(
            unit,
            record,
            trigger,
            delay,
            since=stands.put_off_since if stands is not None else None,
            free=not holders,
        )
    if stands is not None:
        dispatches = end_passively(
            unit, stands, State.COALESCED, f"{record.key} is newer and stands for it", record.key
        )
    if record.state is not State.WAITING:
        move(unit, record, State.WAITING, "one run follows the running one")
    record.queued = True
    record.due_at = look_again(unit, record)
    unit.save(record)
    return Begun(answer=Parked(ahead=0), dispatches=dispatches)


def overdue(unit: Unit, record: Record, delay: int) -> bool:
    put_off_since = record.put_off_since if record.state is State.PENDING else None
    return put_off_since is not None and unit.now >= put_off_since + delay


def put_off(
    unit: Unit, record: Record, trigger: Trigger, delay: int, *, since: int | None, free: bool
) -> None:
    """A newer trigger came: with a debounce the run starts later, but not later than ``delay`` allows, counted
    from when it could have run but for newer triggers."""
    record.put_off_since = unit.now if since is None and free else since
    if trigger.debounce is not None:
        limit = None if record.put_off_since is None else record.put_off_since + delay
        record.not_before = earliest(unit.now + trigger.debounce, limit)


def replace_holder(
    unit: Unit,
    lock: Lock,
    record: Record,
    trigger: Trigger,
    owner: str,
    retries: int,
    holders: Sequence[Record],
) -> Begun:
    """Take the place of the holder that came first; of as many as it takes where there are fewer slots now."""
    oldest = sorted(holders, key=lambda one: (one.order, one.number, one.key))
    many = len(oldest) - trigger.slots + 1
    last = oldest[many - 1]
    if last.order > record.order:  # a late or lost one does not replace its successor
        return turned(unit, record, State.SKIPPED, f"{last.key} is newer and holds the lock", last.key)
    dispatches: list[Dispatch] = []
    for holder in oldest[:many]:
        state = State.REPLACED if holder.state is State.RUNNING else State.SKIPPED
        dispatches.extend(end_passively(unit, holder, state, f"{record.key} took its place", record.key))
    begun = start(unit, lock, record, trigger, owner, retries, oldest[many:])
    return Begun(answer=begun.answer, dispatches=dispatches)
