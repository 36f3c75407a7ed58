"""What happens to an execution from outside its body: parents, operators and the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import Dispatch, Done, Refused, Trigger
from ..errors import TransitionError
from ..states import State, may_move
from .identity import answers, new_record
from .overlap import look_again
from .record import Lock, Record, Unit
from .steps import (
    ENDINGS,
    MAX_NOTICES,
    WAITED_TOO_LONG,
    backoff,
    end_passively,
    lost_attempt,
    move,
    notices,
    release,
    wake,
)


def take(unit: Unit, key: str) -> tuple[Lock, Record | None]:
    """Take an execution of which only the key is known: lock first, as everywhere, so that no two steps wait
    for each other. Its lock key may change in between; then the lock is of the old one, and ``release`` and
    ``holder_of`` compare."""
    seen = unit.peek(key)
    if seen is None:
        return Lock(lock_key=""), None
    return unit.lock(seen.lock_key), unit.load(key)


def lose(unit: Unit, key: str, delivery: str, reason: str) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.lose`."""
    lock, record = take(unit, key)
    if record is None:
        return Refused(reason="missing")
    if record.state is not State.RUNNING or not (record.owner or "").startswith(delivery + "/"):
        return Refused(reason="superseded", state=record.state)
    dispatches = lost_attempt(unit, lock, record, reason)
    return Done(state=record.state, dispatches=dispatches)


def of_delivery(record: Record, delivery: str | None) -> bool:
    return delivery is not None and (record.owner or "").startswith(delivery + "/")


def end(
    unit: Unit, trigger: Trigger, state: State, reason: str, delivery: str | None, retries: int
) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.end`."""
    if state not in ENDINGS:
        raise TransitionError(key=trigger.key, old="any state, from outside,", new=str(state))
    lock = unit.lock(trigger.lock_key)
    record = unit.load(trigger.key)
    if record is None or (record.state.final and not answers(record, trigger, unit.now)):
        record = new_record(unit, trigger, record)
    elif (
        record.state.final
        or record.trigger_id != trigger.trigger_id
        or retries < record.retries
        or (record.state is State.RUNNING and not of_delivery(record, delivery))
        or not may_move(record.state, state)
    ):
        return Refused(reason="superseded", state=record.state)
    return ended(unit, lock, record, state, reason)


def ended(unit: Unit, lock: Lock, record: Record, state: State, reason: str) -> Done:
    move(unit, record, state, reason)
    dispatches = list(notices(unit, record))
    unit.save(record)
    dispatches.extend(release(unit, lock, record))
    dispatches.extend(wake(unit, lock))
    return Done(state=record.state, dispatches=dispatches)


def revoke(unit: Unit, key: str, reason: str) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.revoke`."""
    lock, record = take(unit, key)
    if record is None:
        return Refused(reason="missing")
    if record.state.final:
        return Refused(reason="superseded", state=record.state)
    dispatches = end_passively(unit, record, State.REVOKED, reason)
    dispatches.extend(release(unit, lock, record))
    dispatches.extend(wake(unit, lock))
    return Done(state=record.state, dispatches=dispatches)


def attend(unit: Unit, key: str) -> tuple[Sequence[Dispatch], bool]:
    """Do what is due for one execution; the second value says whether its owner turned out to be gone.

    Safe to call for anything: what is not due is left alone.
    """
    lock, record = take(unit, key)
    if record is None or record.due_at is None or record.due_at > unit.now:
        return (), False
    if record.state is State.RUNNING:
        return lost_attempt(unit, lock, record, "its lease ended"), True
    if record.state is State.WAITING:
        return attend_waiting(unit, lock, record), False
    record.sends += 1
    if record.state.final:
        return attend_final(unit, record), False
    if record.state is State.UNCERTAIN:
        record.due_at = None
        unit.save(record)
        return (), False
    record.due_at = backoff(record, unit.now)
    # One that was woken and does not come, again and again, no longer keeps the others waiting. Should it come
    # after all, its order gives it its place back.
    steps_aside = record.queued and record.state is State.PENDING and record.sends > MAX_NOTICES
    if steps_aside:
        record.queued = False
    unit.save(record)
    sent = Dispatch(
        key=record.key, trigger_id=record.trigger_id, message=record.message, why=str(record.state)
    )
    return [sent, *(wake(unit, lock) if steps_aside else ())], False


def attend_waiting(unit: Unit, lock: Lock, record: Record) -> list[Dispatch]:
    if record.deadline is not None and unit.now >= record.deadline:
        dispatches = end_passively(unit, record, State.LOCK_TIMEOUT, "it waited as long as wait_for allows")
        return [*dispatches, *wake(unit, lock)]
    if record.start_by is not None and record.attempt == 0 and unit.now >= record.start_by:
        dispatches = end_passively(unit, record, State.EXPIRED, WAITED_TOO_LONG)
        return [*dispatches, *wake(unit, lock)]
    record.due_at = look_again(unit, record)
    unit.save(record)
    return wake(unit, lock)


def attend_final(unit: Unit, record: Record) -> list[Dispatch]:
    """An ending that still owes answers."""
    if record.sends > MAX_NOTICES:
        record.due_at = None
        unit.save(record)
        return []
    sent = []
    if record.state not in (State.SUCCEEDED, State.FAILED):
        sent.append(
            Dispatch(
                key=record.key, trigger_id=record.trigger_id, message=record.message, why=str(record.state)
            )
        )
    sent.extend(notices(unit, record))
    record.due_at = backoff(record, unit.now)
    unit.save(record)
    return sent
