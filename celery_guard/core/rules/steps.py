"""The small steps that the rules are made of."""

from __future__ import annotations

from collections.abc import Iterator

from ..contract import Dispatch
from ..errors import TransitionError
from ..options import Overlap
from ..states import State, may_move
from .record import Lock, Record, Unit

#: First wait before an unanswered message is sent again, and the longest; doubled in between.
RESEND = 5_000
RESEND_MAX = 300_000
#: How often a parked execution is looked at although nothing woke it.
LOOK_AGAIN = 60_000
#: How often the answer to a passive ending is sent before it is given up.
MAX_NOTICES = 8
#: Why a first attempt never came.
TOO_LATE = "it is too old to start (start_within or expires)"
WAITED_TOO_LONG = "it waited until it was too old (max_waiting_age, start_within or expires)"
#: What may be said from outside of a body about how its execution ended.
ENDINGS = frozenset({State.REVOKED, State.EXPIRED, State.FAILED})


def move(unit: Unit, record: Record, state: State, reason: str = "", by: str | None = None) -> None:
    if not may_move(record.state, state):
        raise TransitionError(key=record.key, old=str(record.state), new=str(state))
    record.state, record.reason, record.by = state, reason, by
    if state is not State.RUNNING:
        if state is not State.RETRYING:
            record.expires_at = None
        if state is not State.WAITING and state is not State.PENDING and state is not State.LOST:
            record.queued = False
    if state.final:
        record.finished_at = unit.now
        record.keep_until = unit.now + max(record.keep, record.unique_for)
        record.due_at = None
        record.sends = 0
        if state is not State.FAILED and state is not State.SUCCEEDED:
            record.result = None
    unit.moved(record)


def backoff(record: Record, now: int) -> int:
    return now + min(RESEND << min(record.sends, 16), RESEND_MAX)


def notices(unit: Unit, record: Record) -> Iterator[Dispatch]:
    """The messages that make somebody answer for an ending nobody was there to see: the execution's own where
    it ended passively, and those of the triggers that joined it."""
    if any(record.followers.values()):
        record.due_at = backoff(record, unit.now)
    for trigger_id, message in record.followers.items():
        if message:
            yield Dispatch(key=record.key, trigger_id=trigger_id, message=message, why="joined")


def end_passively(
    unit: Unit, record: Record, state: State, reason: str, by: str | None = None
) -> list[Dispatch]:
    """End an execution whose trigger is not here: its message is sent once more, finds the outcome, and whoever
    waits for the result gets an answer."""
    move(unit, record, state, reason, by)
    record.due_at = backoff(record, unit.now)
    sent = [Dispatch(key=record.key, trigger_id=record.trigger_id, message=record.message, why=str(state))]
    sent.extend(notices(unit, record))
    unit.save(record)
    return sent


def wake(unit: Unit, lock: Lock) -> list[Dispatch]:
    """Send the messages of those at the head of the queue for whom there is room now."""
    waiting = unit.heads(lock.lock_key, 1)
    if not waiting:
        return []
    room = waiting[0].slots - len(holders_of(unit, lock))
    if room > 1:
        waiting = unit.heads(lock.lock_key, room)
    sent = []
    for record in waiting[: max(room, 0)]:
        if record.state is not State.WAITING:
            continue  # it was woken before
        if record.overlap is Overlap.COALESCE and record.put_off_since is None:
            record.put_off_since = unit.now
        closed = closed_until(lock, record)
        if closed > unit.now:
            record.due_at = min(record.due_at or closed, closed)
            unit.save(record)
            continue
        move(unit, record, State.PENDING, "its turn has come")
        record.due_at = backoff(record, unit.now)
        unit.save(record)
        sent.append(
            Dispatch(key=record.key, trigger_id=record.trigger_id, message=record.message, why="released")
        )
    return sent


def closed_until(lock: Lock, record: Record) -> int:
    """Until when a first attempt may not start although there is room: debounced, or throttled."""
    if record.attempt:
        return 0
    return max(record.not_before or 0, lock.quiet_until if record.throttle else 0)


def release(unit: Unit, lock: Lock, record: Record) -> list[Dispatch]:
    if record.key not in lock.holders:
        return []
    lock.holders.remove(record.key)
    unit.save_lock(lock)
    return wake(unit, lock)


def holders_of(unit: Unit, lock: Lock) -> list[Record]:
    """Who holds the lock now, by living leases."""
    found = (unit.load(key) for key in lock.holders)
    return [
        holder
        for holder in found
        if holder is not None and holder.lock_key == lock.lock_key and holder.alive(unit.now)
    ]


def lost_attempt(unit: Unit, lock: Lock, record: Record, reason: str) -> list[Dispatch]:
    """An owner is gone: lost, or dead where this was the last attempt allowed; the lock is free."""
    record.lost_attempts += 1
    dispatches: list[Dispatch] = []
    if record.lost_attempts >= record.max_attempts:
        text = f"{record.lost_attempts} attempts lost, the last because {reason}"
        # through lost, as the table has it: a dead execution was lost for the last time
        move(unit, record, State.LOST, reason)
        dispatches.extend(end_passively(unit, record, State.DEAD, text))
    else:
        move(unit, record, State.LOST, reason)
        # Under wait and queue it keeps its place, before all that came later.
        record.queued = record.overlap in (Overlap.WAIT, Overlap.QUEUE)
        record.due_at = backoff(record, unit.now)
        unit.save(record)
        dispatches.append(
            Dispatch(key=record.key, trigger_id=record.trigger_id, message=record.message, why="lost")
        )
    dispatches.extend(release(unit, lock, record))
    return dispatches
