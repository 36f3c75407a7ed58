"""What one atomic step sees: an execution and a lock as a store keeps them, and the :class:`Unit` it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ..contract import Execution
from ..options import Overlap
from ..states import State


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
    slots: int = 1
    throttle: int | None = None
    throttle_failures: bool = False
    entry: str | None = None
    deadline: int | None = None
    #: its first attempt starts before this or never
    start_by: int | None = None
    #: it is not woken before this
    not_before: int | None = None
    #: since when newer triggers put it off
    put_off_since: int | None = None
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
            entry=self.entry,
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
    """A lock key: who holds it (as many as it has slots), and the highest token it ever gave."""

    lock_key: str
    holders: list[str] = field(default_factory=list)
    token: int = 0
    #: until when it stays closed after the success of ``quiet_by``
    quiet_until: int = 0
    quiet_by: str | None = None


class Unit(Protocol):
    """What one atomic step sees. ``lock`` serialises all steps on one lock key until the step ends."""

    now: int

    def lock(self, lock_key: str) -> Lock:
        """Take the lock key's row, made where it is missing. Always taken before any execution's row."""

    def peek(self, key: str) -> Record | None:
        """Read without taking; only to learn the lock key, and decided again after :meth:`load`."""

    def load(self, key: str) -> Record | None:
        """Read and take."""

    def heads(self, lock_key: str, count: int) -> list[Record]:
        """Take the first of the queue: the queued records with the lowest ``(order, number)``."""

    def queued(self, lock_key: str) -> int:
        """Count the queue."""

    def save(self, record: Record) -> None: ...
    def save_lock(self, lock: Lock) -> None: ...
    def delete(self, record: Record) -> None: ...

    def moved(self, record: Record) -> None:
        """Note that the record has just changed its state (counters, history)."""
