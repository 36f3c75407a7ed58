"""The rules of an execution's life, written once for every store that runs Python under its own transaction.

A store gives a :class:`Unit` (what one atomic step can see and change), the rules decide. The Redis store has
the same rules in Lua; the conformance suite holds the two together.

Ownership lives in one place, the execution record (owner, token, expiry). A lock names the execution that
holds it and counts the tokens. Those that wait stand in the lock's queue, ordered by when they were published;
whoever is at its head may take a free lock, nobody else may while the queue is not empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .contract import (
    Acquired,
    Answered,
    Begun,
    Dispatch,
    Done,
    Execution,
    Finish,
    Finishing,
    InFlight,
    Joined,
    Lease,
    Mismatch,
    Parked,
    Refused,
    Reserved,
    Standing,
    Trigger,
)
from .errors import TransitionError
from .options import Overlap
from .states import REOPENABLE, State, may_move

#: First wait before an unanswered message is sent again, and the longest; doubled in between.
RESEND = 5_000
RESEND_MAX = 300_000
#: How often a parked execution is looked at although nothing woke it.
LOOK_AGAIN = 60_000
#: How often the answer to a passive ending is sent before it is given up.
MAX_NOTICES = 8
#: What may be said from outside of a body about how its execution ended.
ENDINGS = frozenset({State.REVOKED, State.EXPIRED, State.FAILED})


@dataclass(kw_only=True)
class Record:
    """An execution as a store keeps it. Mutable inside one atomic step only."""

    key: str
    number: int
    task: str
    lock_key: str
    trigger_id: str
    fingerprint: str
    message: str
    source: str
    overlap: Overlap
    state: State = State.PENDING
    reason: str = ""
    by: str | None = None
    scheduled_at: int | None = None
    lease: int = 60_000
    max_attempts: int = 5
    keep: int = 0
    unique_for: int = 0
    once_per_key: bool = False
    hold: bool = False
    deadline: int | None = None
    owner: str | None = None
    token: int | None = None
    expires_at: int | None = None
    attempt: int = 0
    lost_attempts: int = 0
    retries: int = 0
    triggers: int = 1
    order: int = 0
    #: stands in the lock's queue
    queued: bool = False
    created_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    keep_until: int | None = None
    #: when the dispatcher has to look
    due_at: int | None = None
    sends: int = 0
    result: str | None = None
    checkpoint: str | None = None
    previous: int | None = None
    #: other triggers of this execution: id -> message, empty once answered
    followers: dict[str, str] = field(default_factory=dict)

    def holds(self, owner: str, token: int, now: int) -> bool:
        """The clause that every write to held state must pass: owner, token and a lease that has not ended."""
        return (
            self.state is State.RUNNING
            and self.owner == owner
            and self.token == token
            and self.expires_at is not None
            and now < self.expires_at
        )

    def alive(self, now: int) -> bool:
        """Whether an owner is still to be believed (or the lock is kept between two tries)."""
        held = self.state is State.RUNNING or (self.state is State.RETRYING and self.hold)
        return held and self.expires_at is not None and now < self.expires_at

    def view(self) -> Execution:
        """Return what outsiders may see."""
        return Execution(
            key=self.key,
            number=self.number,
            task=self.task,
            lock_key=self.lock_key,
            state=self.state,
            trigger_id=self.trigger_id,
            reason=self.reason,
            by=self.by,
            source=self.source,
            overlap=self.overlap,
            scheduled_at=self.scheduled_at,
            fingerprint=self.fingerprint,
            owner=self.owner,
            token=self.token,
            attempt=self.attempt,
            lost_attempts=self.lost_attempts,
            retries=self.retries,
            triggers=self.triggers,
            created_at=self.created_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            expires_at=self.expires_at,
            checkpoint=self.checkpoint,
            previous=self.previous,
        )


@dataclass(kw_only=True)
class Lock:
    """A lock key: who holds it, and the highest token it ever gave."""

    lock_key: str
    holder: str | None = None
    token: int = 0


class Unit(Protocol):
    """What one atomic step sees. ``lock`` serialises all steps on one lock key until the step ends."""

    now: int

    def lock(self, lock_key: str) -> Lock:
        """Take the lock key's row, made where it is missing. Always taken before any execution's row."""

    def peek(self, key: str) -> Record | None:
        """Read without taking; only to learn the lock key, and decided again after :meth:`load`."""

    def load(self, key: str) -> Record | None:
        """Read and take."""

    def head(self, lock_key: str) -> Record | None:
        """Take the first of the queue: the queued record with the lowest ``(order, number)``."""

    def queued(self, lock_key: str) -> int:
        """Count the queue."""

    def save(self, record: Record) -> None: ...
    def save_lock(self, lock: Lock) -> None: ...
    def delete(self, record: Record) -> None: ...

    def moved(self, record: Record) -> None:
        """Note that the record has just changed its state (counters, history)."""


# --- small steps ----------------------------------------------------------------------------------------


def _move(unit: Unit, record: Record, state: State, reason: str = "", by: str | None = None) -> None:
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


def _backoff(record: Record, now: int) -> int:
    return now + min(RESEND << min(record.sends, 16), RESEND_MAX)


def _notice(unit: Unit, record: Record) -> Iterator[Dispatch]:
    """The messages that make somebody answer for an ending nobody was there to see: the execution's own where
    it ended passively, and those of the triggers that joined it."""
    if any(record.followers.values()):
        record.due_at = _backoff(record, unit.now)
    for trigger_id, message in record.followers.items():
        if message:
            yield Dispatch(key=record.key, trigger_id=trigger_id, message=message, why="joined")


def _end_passively(
    unit: Unit, record: Record, state: State, reason: str, by: str | None = None
) -> list[Dispatch]:
    """End an execution whose trigger is not here: its message is sent once more, finds the outcome, and whoever
    waits for the result gets an answer."""
    _move(unit, record, state, reason, by)
    record.due_at = _backoff(record, unit.now)
    sent = [Dispatch(key=record.key, trigger_id=record.trigger_id, message=record.message, why=str(state))]
    sent.extend(_notice(unit, record))
    unit.save(record)
    return sent


def _wake(unit: Unit, lock: Lock) -> list[Dispatch]:
    """The lock is free: send the message of whoever is at the head of the queue."""
    head = unit.head(lock.lock_key)
    if head is None or head.state is not State.WAITING:
        return []
    _move(unit, head, State.PENDING, "its turn has come")
    head.due_at = _backoff(head, unit.now)
    unit.save(head)
    return [Dispatch(key=head.key, trigger_id=head.trigger_id, message=head.message, why="released")]


def _release(unit: Unit, lock: Lock, record: Record) -> list[Dispatch]:
    if lock.holder != record.key:
        return []
    lock.holder = None
    unit.save_lock(lock)
    return _wake(unit, lock)


def _holder(unit: Unit, lock: Lock) -> Record | None:
    """Who holds the lock now, by a living lease."""
    if lock.holder is None:
        return None
    holder = unit.load(lock.holder)
    if holder is None or holder.lock_key != lock.lock_key or not holder.alive(unit.now):
        return None
    return holder


def _answers(record: Record, trigger: Trigger, now: int) -> bool:
    """Whether a final record is the outcome for this trigger."""
    if not record.state.final or record.keep_until is None or now >= record.keep_until:
        return False
    if trigger.reopen and record.state in REOPENABLE:
        return False
    if trigger.trigger_id == record.trigger_id or trigger.trigger_id in record.followers:
        return True
    if record.once_per_key:
        return True
    if trigger.scheduled_at is not None and trigger.scheduled_at == record.scheduled_at:
        return True  # another beat's tick for the same due time, whatever became of it
    if record.state is not State.SUCCEEDED or record.finished_at is None:
        return False
    return now < record.finished_at + record.unique_for


def _mismatch(record: Record, trigger: Trigger) -> bool:
    # A retry may change its own arguments; another trigger may not reuse the key for other ones.
    return record.trigger_id != trigger.trigger_id and record.fingerprint != trigger.fingerprint


def _new(unit: Unit, trigger: Trigger, before: Record | None) -> Record:
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
        order=min(trigger.order or unit.now, unit.now),
        created_at=unit.now,
        previous=before.number if before else None,
        followers={name: text for name, text in before.followers.items() if text} if before else {},
    )
    record.followers.pop(trigger.trigger_id, None)
    _options(record, trigger)
    return record


def _options(record: Record, trigger: Trigger) -> None:
    record.lock_key = trigger.lock_key
    record.overlap = trigger.overlap
    record.lease = trigger.lease
    record.max_attempts = trigger.max_attempts
    record.keep = trigger.keep
    record.unique_for = trigger.unique_for
    record.once_per_key = trigger.once_per_key
    record.hold = trigger.hold


def _reopened(unit: Unit, record: Record, trigger: Trigger) -> Record:
    _move(unit, record, State.PENDING, "replayed")
    record.trigger_id, record.message, record.source = trigger.trigger_id, trigger.message, trigger.source
    record.lost_attempts = record.retries = record.sends = 0
    record.finished_at = record.keep_until = record.deadline = None
    record.result = None
    return record


# --- publish --------------------------------------------------------------------------------------------


def reserve(unit: Unit, trigger: Trigger, resend_after: int) -> Reserved | Standing | Mismatch:
    """See :meth:`~celery_guard.core.contract.Store.reserve`."""
    unit.lock(trigger.lock_key)
    record = unit.load(trigger.key)
    if record is not None and (not record.state.final or _answers(record, trigger, unit.now)):
        if _mismatch(record, trigger):
            return Mismatch(trigger_id=record.trigger_id)
        return Standing(trigger_id=record.trigger_id, state=record.state)
    if record is not None and trigger.reopen and record.state in REOPENABLE:
        if _mismatch(record, trigger):  # a replay is the same execution, so it has the same payload
            return Mismatch(trigger_id=record.trigger_id)
        record = _reopened(unit, record, trigger)
    else:
        record = _new(unit, trigger, record)
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


# --- begin ----------------------------------------------------------------------------------------------


def begin(unit: Unit, trigger: Trigger, owner: str, retries: int) -> Begun:
    """See :meth:`~celery_guard.core.contract.Store.begin`."""
    lock = unit.lock(trigger.lock_key)
    record = unit.load(trigger.key)
    if record is None or (record.state.final and not _answers(record, trigger, unit.now)):
        if record is not None and trigger.reopen and record.state in REOPENABLE:
            if _mismatch(record, trigger):
                return Begun(answer=Mismatch(trigger_id=record.trigger_id))
            record = _reopened(unit, record, trigger)
        else:
            record = _new(unit, trigger, record)
        return _acquire(unit, lock, record, trigger, owner, retries)
    if _mismatch(record, trigger):
        return Begun(answer=Mismatch(trigger_id=record.trigger_id))
    if record.state.final:
        return Begun(answer=_answer(unit, record, trigger))
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
            return Begun(answer=_acquired(record))
        if record.alive(unit.now):
            return Begun(answer=InFlight(state=record.state))
        held = lock if record.lock_key == lock.lock_key else unit.lock(record.lock_key)
        dispatches = _lost(unit, held, record, "its lease ended")
        if record.lost_attempts >= record.max_attempts:  # dead
            return Begun(answer=_answer(unit, record, trigger), dispatches=dispatches)
        begun = _acquire(unit, lock, record, trigger, owner, retries)
        return Begun(answer=begun.answer, dispatches=[*dispatches, *begun.dispatches])
    return _acquire(unit, lock, record, trigger, owner, retries)


def _acquired(record: Record) -> Acquired:
    assert record.owner is not None
    assert record.token is not None
    assert record.expires_at is not None
    lease = Lease(
        key=record.key, lock_key=record.lock_key, owner=record.owner, token=record.token, lease=record.lease
    )
    return Acquired(
        lease=lease, attempt=record.attempt, expires_at=record.expires_at, checkpoint=record.checkpoint
    )


def _answer(unit: Unit, record: Record, trigger: Trigger) -> Answered:
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


def _acquire(unit: Unit, lock: Lock, record: Record, trigger: Trigger, owner: str, retries: int) -> Begun:
    if trigger.overlap is Overlap.ALLOW:
        return _start(unit, lock, record, trigger, owner, retries)
    holder = _holder(unit, lock)
    if holder is not None and holder.key == record.key:
        return _start(unit, lock, record, trigger, owner, retries)  # it kept the lock between two tries
    head = unit.head(lock.lock_key)
    if holder is None and (head is None or head.key == record.key):
        return _start(unit, lock, record, trigger, owner, retries)
    dispatches: list[Dispatch] = []
    if holder is None:
        dispatches = _wake(unit, lock)  # a net below: the lock is free and somebody waits
    begun = _second_trigger(unit, lock, record, trigger, owner, retries, holder)
    return Begun(answer=begun.answer, dispatches=[*dispatches, *begun.dispatches])


def _start(unit: Unit, lock: Lock, record: Record, trigger: Trigger, owner: str, retries: int) -> Begun:
    # The token follows the clock in microseconds, so it grows even where the store forgot the last one; and it
    # grows by one at least, so it does within a clock tick and after the clock was set back.
    lock.token = max(lock.token + 1, unit.now * 1000)
    if trigger.overlap is not Overlap.ALLOW:
        lock.holder = record.key
    unit.save_lock(lock)
    _options(record, trigger)
    _move(unit, record, State.RUNNING)
    record.queued = False
    record.message, record.retries = trigger.message, retries
    record.owner, record.token = owner, lock.token
    record.attempt += 1
    record.sends = 0
    record.deadline = None  # should it wait once more, it may wait as long again
    record.started_at = unit.now
    record.expires_at = record.due_at = unit.now + record.lease
    unit.save(record)
    return Begun(answer=_acquired(record))


def _second_trigger(
    unit: Unit,
    lock: Lock,
    record: Record,
    trigger: Trigger,
    owner: str,
    retries: int,
    holder: Record | None,
) -> Begun:
    """The lock is held, or promised to the head of the queue: apply the policy."""
    _options(record, trigger)
    record.message, record.retries = trigger.message, retries
    head = unit.head(lock.lock_key)
    blocker = holder or head
    assert blocker is not None
    if trigger.overlap is Overlap.REPLACE and holder is not None:
        return _replace(unit, lock, record, trigger, owner, retries, holder)
    if trigger.overlap is Overlap.COALESCE:
        return _coalesce(unit, lock, record, head, blocker)
    if trigger.overlap in (Overlap.WAIT, Overlap.QUEUE):
        ahead = unit.queued(lock.lock_key)
        if record.queued:
            if record.state is not State.WAITING:
                _park(unit, record, trigger)
            return Begun(answer=Parked(ahead=ahead - 1))
        if trigger.max_queue is not None and record.attempt == 0 and ahead >= trigger.max_queue:
            return _turned(unit, record, State.SKIPPED, f"the queue is full ({ahead} waiting)", blocker.key)
        _park(unit, record, trigger)
        return Begun(answer=Parked(ahead=ahead))
    return _turned(unit, record, State.SKIPPED, f"held by {blocker.key}", blocker.key)


def _park(unit: Unit, record: Record, trigger: Trigger) -> None:
    _move(unit, record, State.WAITING, "the lock is held")
    record.queued = True
    if record.deadline is None and trigger.wait_for is not None:
        record.deadline = unit.now + trigger.wait_for
    record.due_at = min(record.deadline or unit.now + LOOK_AGAIN, unit.now + LOOK_AGAIN)
    unit.save(record)


def _turned(unit: Unit, record: Record, state: State, reason: str, by: str) -> Begun:
    _move(unit, record, state, reason, by)
    dispatches = list(_notice(unit, record))
    unit.save(record)
    return Begun(
        answer=Answered(state=state, reason=reason, result=None, trigger_id=record.trigger_id, by=by),
        dispatches=dispatches,
    )


def _coalesce(unit: Unit, lock: Lock, record: Record, head: Record | None, blocker: Record) -> Begun:
    """One trailing run, the newest trigger's. ``head`` is the one that waits so far, if any."""
    if head is not None and head.key == record.key:
        head = None
    newer = head or blocker
    if newer.order > record.order:
        return _turned(unit, record, State.COALESCED, f"{newer.key} is newer and stands for it", newer.key)
    dispatches: list[Dispatch] = []
    if head is not None:
        dispatches = _end_passively(
            unit, head, State.COALESCED, f"{record.key} is newer and stands for it", record.key
        )
    if record.state is not State.WAITING:
        _move(unit, record, State.WAITING, "one run follows the running one")
    record.queued = True
    record.due_at = unit.now + LOOK_AGAIN
    unit.save(record)
    if _holder(unit, lock) is None:
        dispatches.extend(_wake(unit, lock))
    return Begun(answer=Parked(ahead=0), dispatches=dispatches)


def _replace(
    unit: Unit, lock: Lock, record: Record, trigger: Trigger, owner: str, retries: int, holder: Record
) -> Begun:
    if holder.order > record.order:  # a late or lost one does not replace its successor
        return _turned(unit, record, State.SKIPPED, f"{holder.key} is newer and holds the lock", holder.key)
    dispatches: list[Dispatch] = []
    if holder.state is State.RUNNING:
        dispatches = _end_passively(unit, holder, State.REPLACED, f"{record.key} took its place", record.key)
    else:
        dispatches = _end_passively(unit, holder, State.SKIPPED, f"{record.key} took its place", record.key)
    begun = _start(unit, lock, record, trigger, owner, retries)
    return Begun(answer=begun.answer, dispatches=dispatches)


# --- while it runs --------------------------------------------------------------------------------------


def _refused(record: Record | None, lease: Lease) -> Refused:
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
        return _refused(record, lease)
    record.expires_at = record.due_at = unit.now + record.lease
    unit.save(record)
    return Done(state=record.state)


def verify(unit: Unit, lease: Lease) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.verify`."""
    record = unit.load(lease.key)
    if record is None or not record.holds(lease.owner, lease.token, unit.now):
        return _refused(record, lease)
    return Done(state=record.state)


def checkpoint(unit: Unit, lease: Lease, data: str) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.checkpoint`."""
    record = unit.load(lease.key)
    if record is None or not record.holds(lease.owner, lease.token, unit.now):
        return _refused(record, lease)
    record.checkpoint = data
    unit.save(record)
    return Done(state=record.state)


# --- ways out -------------------------------------------------------------------------------------------


def finish(unit: Unit, finish: Finish) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.finish`."""
    if finish.state not in Finishing:
        raise TransitionError(key=finish.lease.key, old=str(State.RUNNING), new=str(finish.state))
    lease = finish.lease
    lock = unit.lock(lease.lock_key)
    record = unit.load(lease.key)
    if record is not None and record.state is finish.state and _finished_by(record, lease):
        return Done(state=record.state)  # the answer to an accepted finish was lost
    if record is None or not record.holds(lease.owner, lease.token, unit.now):
        return _refused(record, lease)
    _move(unit, record, finish.state, finish.reason)
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
        dispatches.extend(_notice(unit, record))
    else:
        record.due_at = None
    unit.save(record)
    if not (finish.state is State.RETRYING and record.hold):
        dispatches.extend(_release(unit, lock, record))
    return Done(state=record.state, dispatches=dispatches)


def _finished_by(record: Record, lease: Lease) -> bool:
    return record.owner == lease.owner and record.token == lease.token


def _lost(unit: Unit, lock: Lock, record: Record, reason: str) -> list[Dispatch]:
    """An owner is gone: lost, or dead where this was the last attempt allowed; the lock is free."""
    record.lost_attempts += 1
    dispatches: list[Dispatch] = []
    if record.lost_attempts >= record.max_attempts:
        text = f"{record.lost_attempts} attempts lost, the last because {reason}"
        # through lost, as the table has it: a dead execution was lost for the last time
        _move(unit, record, State.LOST, reason)
        dispatches.extend(_end_passively(unit, record, State.DEAD, text))
    else:
        _move(unit, record, State.LOST, reason)
        # Under wait and queue it keeps its place, before all that came later.
        record.queued = record.overlap in (Overlap.WAIT, Overlap.QUEUE)
        record.due_at = _backoff(record, unit.now)
        unit.save(record)
        dispatches.append(
            Dispatch(key=record.key, trigger_id=record.trigger_id, message=record.message, why="lost")
        )
    dispatches.extend(_release(unit, lock, record))
    return dispatches


def _take(unit: Unit, key: str) -> tuple[Lock, Record | None]:
    """Take an execution of which only the key is known: lock first, as everywhere, so that no two steps wait
    for each other. Its lock key may change in between; then the lock is of the old one, and ``_release`` and
    ``_holder`` compare."""
    seen = unit.peek(key)
    if seen is None:
        return Lock(lock_key=""), None
    return unit.lock(seen.lock_key), unit.load(key)


def lose(unit: Unit, key: str, delivery: str, reason: str) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.lose`."""
    lock, record = _take(unit, key)
    if record is None:
        return Refused(reason="missing")
    if record.state is not State.RUNNING or not (record.owner or "").startswith(delivery + "/"):
        return Refused(reason="superseded", state=record.state)
    dispatches = _lost(unit, lock, record, reason)
    return Done(state=record.state, dispatches=dispatches)


def _of_delivery(record: Record, delivery: str | None) -> bool:
    return delivery is not None and (record.owner or "").startswith(delivery + "/")


def end(
    unit: Unit, trigger: Trigger, state: State, reason: str, delivery: str | None, retries: int
) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.end`."""
    if state not in ENDINGS:
        raise TransitionError(key=trigger.key, old="any state, from outside,", new=str(state))
    lock = unit.lock(trigger.lock_key)
    record = unit.load(trigger.key)
    if record is None or (record.state.final and not _answers(record, trigger, unit.now)):
        record = _new(unit, trigger, record)
    elif (
        record.state.final
        or record.trigger_id != trigger.trigger_id
        or retries < record.retries
        or (record.state is State.RUNNING and not _of_delivery(record, delivery))
        or not may_move(record.state, state)
    ):
        return Refused(reason="superseded", state=record.state)
    return _ended(unit, lock, record, state, reason)


def _ended(unit: Unit, lock: Lock, record: Record, state: State, reason: str) -> Done:
    _move(unit, record, state, reason)
    dispatches = list(_notice(unit, record))
    unit.save(record)
    dispatches.extend(_release(unit, lock, record))
    if lock.holder is None:
        dispatches.extend(_wake(unit, lock))
    return Done(state=record.state, dispatches=dispatches)


def revoke(unit: Unit, key: str, reason: str) -> Done | Refused:
    """See :meth:`~celery_guard.core.contract.Store.revoke`."""
    lock, record = _take(unit, key)
    if record is None:
        return Refused(reason="missing")
    if record.state.final:
        return Refused(reason="superseded", state=record.state)
    dispatches = _end_passively(unit, record, State.REVOKED, reason)
    dispatches.extend(_release(unit, lock, record))
    if lock.holder is None:
        dispatches.extend(_wake(unit, lock))
    return Done(state=record.state, dispatches=dispatches)


# --- the dispatcher -------------------------------------------------------------------------------------


def attend(unit: Unit, key: str) -> tuple[Sequence[Dispatch], bool]:
    """Do what is due for one execution; the second value says whether its owner turned out to be gone.

    Safe to call for anything: what is not due is left alone.
    """
    lock, record = _take(unit, key)
    if record is None or record.due_at is None or record.due_at > unit.now:
        return (), False
    if record.state is State.RUNNING:
        return _lost(unit, lock, record, "its lease ended"), True
    if record.state is State.WAITING:
        return _attend_waiting(unit, lock, record), False
    record.sends += 1
    if record.state.final:
        return _attend_final(unit, record), False
    if record.state is State.UNCERTAIN:
        record.due_at = None
        unit.save(record)
        return (), False
    record.due_at = _backoff(record, unit.now)
    unit.save(record)
    why = str(record.state)
    return [Dispatch(key=record.key, trigger_id=record.trigger_id, message=record.message, why=why)], False


def _attend_waiting(unit: Unit, lock: Lock, record: Record) -> list[Dispatch]:
    if record.deadline is not None and unit.now >= record.deadline:
        dispatches = _end_passively(unit, record, State.LOCK_TIMEOUT, "it waited as long as wait_for allows")
        if _holder(unit, lock) is None:
            dispatches.extend(_wake(unit, lock))
        return dispatches
    record.due_at = min(record.deadline or unit.now + LOOK_AGAIN, unit.now + LOOK_AGAIN)
    unit.save(record)
    return _wake(unit, lock) if _holder(unit, lock) is None else []


def _attend_final(unit: Unit, record: Record) -> list[Dispatch]:
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
    sent.extend(_notice(unit, record))
    record.due_at = _backoff(record, unit.now)
    unit.save(record)
    return sent
