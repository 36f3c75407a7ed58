"""What the owner of a lease may do, and nobody else."""

from __future__ import annotations

from ..contract import Dispatch, Done, Finish, Finishing, Lease, Refused
from ..errors import TransitionError
from ..options import Overlap
from ..states import State
from .record import Record, Unit
from .steps import RESEND, RESEND_MAX, move, notices, release


def refusal(record: Record | None, lease: Lease) -> Refused:
    if record is None:
        return Refused(reason="missing")
    same = record.owner == lease.owner and record.token == lease.token
    if record.state is State.RUNNING and same:
        return Refused(reason="expired", state=record.state)
    return Refused(reason="superseded", state=record.state)


def renew(unit: Unit, lease: Lease) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.renew` (one lease)."""
    record = unit.load(lease.key)
    if record is None or not record.holds(lease.owner, lease.token, unit.now):
        return refusal(record, lease)
    record.expires_at = record.due_at = unit.now + record.lease
    unit.save(record)
    return Done(state=record.state)


def verify(unit: Unit, lease: Lease) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.verify`."""
    record = unit.load(lease.key)
    if record is None or not record.holds(lease.owner, lease.token, unit.now):
        return refusal(record, lease)
    return Done(state=record.state)


def checkpoint(unit: Unit, lease: Lease, data: str) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.checkpoint`."""
    record = unit.load(lease.key)
    if record is None or not record.holds(lease.owner, lease.token, unit.now):
        return refusal(record, lease)
    record.checkpoint = data
    unit.save(record)
    return Done(state=record.state)


def finish(unit: Unit, finish: Finish) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.finish`."""
    if finish.state not in Finishing:
        raise TransitionError(key=finish.lease.key, old=str(State.RUNNING), new=str(finish.state))
    lease = finish.lease
    lock = unit.lock(lease.lock_key)
    record = unit.load(lease.key)
    if record is not None and record.state is finish.state and finished_by(record, lease):
        return Done(state=record.state)  # the answer to an accepted finish was lost
    if record is None or not record.holds(lease.owner, lease.token, unit.now):
        return refusal(record, lease)
    move(unit, record, finish.state, finish.reason)
    record.result = finish.result
    dispatches: list[Dispatch] = []
    if finish.state is State.RETRYING:
        record.retries = finish.retries
        record.message = finish.message or record.message
        record.due_at = unit.now + finish.delay + RESEND
        if record.hold:
            record.expires_at = unit.now + finish.delay + RESEND_MAX
    elif finish.state is State.INTERRUPTED:
        record.queued = record.overlap in (Overlap.WAIT, Overlap.QUEUE)
        record.due_at = unit.now + RESEND
        dispatches.append(
            Dispatch(key=record.key, trigger_id=record.trigger_id, message=record.message, why="interrupted")
        )
    elif finish.state.final:
        dispatches.extend(notices(unit, record))
    else:
        record.due_at = None
    unit.save(record)
    if record.throttle and (
        finish.state is State.SUCCEEDED or (finish.state is State.FAILED and record.throttle_failures)
    ):
        lock.quiet_until, lock.quiet_by = unit.now + record.throttle, record.key
    if not (finish.state is State.RETRYING and record.hold):
        dispatches.extend(release(unit, lock, record))
    return Done(state=record.state, dispatches=dispatches)


def finished_by(record: Record, lease: Lease) -> bool:
    return record.owner == lease.owner and record.token == lease.token
