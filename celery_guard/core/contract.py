"""What a store promises: the data of each call, the answers, and the :class:`Store` protocol.

Times are whole milliseconds since the epoch by the **store's** clock, durations whole milliseconds, tokens
integers that strictly increase per lock key. Every answer is plain data, so a store in another process,
language or test double can give it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from .options import Overlap
from .states import State

#: What one replacement of a task by a task of the same id counts in ``retries``: more than any number of retries.
GENERATION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """One request to run an execution, as the publisher or the worker knows it.

    ``trigger_id`` is the message's task id: a redelivery and a retry repeat it, a second trigger has another.
    ``order`` is when it was published (publisher's clock, ms; the store never believes the future): who goes
    first among those that wait.
    """

    key: str
    task: str
    lock_key: str
    trigger_id: str
    fingerprint: str
    message: str
    source: str = "call"
    order: int = 0
    scheduled_at: int | None = None
    overlap: Overlap = Overlap.SKIP
    lease: int = 60_000
    max_attempts: int = 5
    #: how long a final record is kept for copies of its own messages
    keep: int = 86_400_000
    #: how long a succeeded execution answers for other triggers; at least 0
    unique_for: int = 0
    #: a due time has one execution whatever its outcome: every final state answers within ``keep``
    once_per_key: bool = False
    #: an explicit replay: opens failed, dead and lock_timeout again
    reopen: bool = False
    wait_for: int | None = None
    max_queue: int | None = None
    #: keep the lock between two tries
    hold: bool = False
    #: the beat entry, from a schedule
    entry: str | None = None
    #: how many may hold the lock at a time
    slots: int = 1
    #: a first attempt starts before this time (ms) or never: expired
    start_by: int | None = None
    #: how old, counted from ``order``, it may get while it is parked
    max_waiting_age: int | None = None
    #: for how long the lock stays closed after a success (and after a failure)
    throttle: int | None = None
    throttle_failures: bool = False
    #: ``coalesce`` waits until no trigger came for so long, newer ones put its run off for ``max_delay`` at most
    debounce: int | None = None
    max_delay: int | None = None
    #: the run of ``coalesce`` has the arguments of the oldest trigger it stands for
    oldest: bool = False


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Time-bounded ownership of one execution, and of its lock where it has one."""

    key: str
    lock_key: str
    owner: str
    token: int
    lease: int


# --- answers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """A stored message that has to be sent (again). Sending twice is harmless; not sending is made up for by
    :meth:`Store.sweep`."""

    key: str
    trigger_id: str
    message: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Acquired:
    """This attempt owns the execution until ``expires_at``."""

    lease: Lease
    attempt: int
    expires_at: int
    checkpoint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The execution has an outcome; it answers for this trigger. ``trigger_id`` is whose message ran."""

    state: State
    reason: str
    result: str | None
    trigger_id: str
    #: key of what it stands behind: the holder it was skipped for, the run that stands for it
    by: str | None = None


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """A copy of a message whose execution is alive elsewhere, parked or between two tries. The record keeps
    the execution; this copy has nothing to do."""

    state: State


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Another trigger of a living execution. It is kept with it and sent again once there is an outcome."""

    trigger_id: str


@dataclass(frozen=True, kw_only=True)
class Parked:
    """The lock is held; the trigger waits in the store, behind ``ahead`` others."""

    ahead: int


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The key stands for another payload."""

    trigger_id: str


@dataclass(frozen=True, kw_only=True)
class Begun:
    """What :meth:`Store.begin` answers, and messages that became due by it."""

    answer: Acquired | Answered | InFlight | Joined | Parked | Mismatch
    dispatches: Sequence[Dispatch] = ()


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """The trigger is recorded; publish its message now."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Another trigger's execution stands for this one: publish nothing."""

    trigger_id: str
    state: State


@dataclass(frozen=True, kw_only=True)
class Done:
    """The write was accepted. ``state`` is what the execution has become."""

    state: State
    dispatches: Sequence[Dispatch] = ()


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The write was refused: owner and token do not hold the execution (any more).

    ``reason`` is ``missing`` (the record is gone: the store lost it), ``expired`` (nobody took over yet, but
    the lease has ended) or ``superseded`` (another owner, or an outcome). ``state`` is what is there now.
    """

    reason: str
    state: State | None = None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What the dispatcher has to send. ``leader`` is false where another one does it at the moment."""

    leader: bool
    dispatches: Sequence[Dispatch] = ()
    #: executions that became lost or dead in this sweep
    lost: Sequence[str] = ()
    #: it looked at as many as it may, so more may be due now: those that wait for one lock must not hold up
    #: the recovery of another
    more: bool = False


@dataclass(frozen=True, kw_only=True)
class Execution:
    """A record as it stands, for people and programs that look."""

    key: str
    number: int
    task: str
    lock_key: str
    state: State
    trigger_id: str
    reason: str = ""
    by: str | None = None
    source: str = "call"
    overlap: Overlap = Overlap.SKIP
    scheduled_at: int | None = None
    entry: str | None = None
    fingerprint: str = ""
    owner: str | None = None
    token: int | None = None
    attempt: int = 0
    lost_attempts: int = 0
    retries: int = 0
    triggers: int = 1
    created_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    expires_at: int | None = None
    checkpoint: str | None = None
    #: number of the execution of the same key before this one
    previous: int | None = None


Finishing = frozenset(
    {State.SUCCEEDED, State.FAILED, State.RETRYING, State.INTERRUPTED, State.UNCERTAIN, State.REVOKED}
)


@dataclass(frozen=True, kw_only=True)
class Finish:
    """How an attempt ends. For ``retrying``, ``message`` is the next try's and ``due_at_delay`` its delay."""

    lease: Lease
    state: State
    reason: str = ""
    result: str | None = None
    message: str | None = None
    retries: int = 0
    delay: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Store(Protocol):
    """The contract. Every method is one atomic step and may be called from any thread or process.

    Expected outcomes are return values. Raises :class:`~celery_guard.core.errors.StoreUnavailableError` for any
    error of the driver and :class:`~celery_guard.core.errors.StoreConfigurationError` for a set-up that cannot
    keep the promises.
    """

    def now(self) -> int:
        """Return the store's time in ms."""

    def check(self) -> Sequence[str]:
        """Connect and return warnings about a set-up that may lose data (eviction, no persistence)."""

    def reserve(self, trigger: Trigger, *, resend_after: int) -> Reserved | Standing | Mismatch:
        """Record a trigger as pending before its message is published. Where an execution of its key is not
        final, or answers for it, nothing is written."""

    def withdraw(self, key: str, trigger_id: str) -> bool:
        """Take back a reservation whose publish failed. True if it was there and untouched."""

    def begin(self, trigger: Trigger, *, owner: str, retries: int = 0) -> Begun:
        """Decide what a delivered message means, and where it may run hand out the lease. Repeating a begin
        with the same ``owner`` gives the same lease. ``retries`` orders the tries of one message's task: a
        replacement (Celery's ``Task.replace``) counts :data:`GENERATION`, and goes on after a success, too."""

    def renew(self, leases: Sequence[Lease]) -> Sequence[Done | Refused]:
        """Renew any number of leases in one round trip; answers are in order. An ended lease is not renewed."""

    def finish(self, finish: Finish) -> Done | Refused:
        """End an attempt: outcome, result, release, next waiter. Owner and token must hold a living lease.
        Repeating an accepted finish is accepted again."""

    def checkpoint(self, lease: Lease, data: str) -> Done | Refused:
        """Save how far a batch got. ``data`` is opaque text."""

    def verify(self, lease: Lease) -> Done | Refused:
        """Say whether the lease holds now, by the store."""

    def lose(self, key: str, delivery: str, reason: str) -> Done | Refused:
        """Declare the attempt of a dead process lost. ``delivery`` is the part of its owner before the slash;
        the new state is ``lost``, or ``dead`` at ``max_attempts``."""

    def end(
        self, trigger: Trigger, *, state: State, reason: str, delivery: str | None = None, retries: int = 0
    ) -> Done | Refused:
        """End an execution from outside its body as revoked, expired or failed. A running one is ended only
        with the delivery that owns it; one that is not recorded yet is recorded as ended."""

    def revoke(self, key: str, reason: str) -> Done | Refused:
        """An operator's revoke, whoever owns it: the one unconditional write. The owner is fenced."""

    def sweep(self, dispatcher: str, *, ttl: int, limit: int = 100) -> Sweep:
        """Find what needs a message: lost owners, woken waiters, retries and triggers nobody delivered. One
        dispatcher at a time, for ``ttl`` ms."""

    def get(self, key: str) -> Execution | None:
        """Return the newest execution of a key."""

    def executions(self, *, task: str | None = None, limit: int = 1000) -> Iterable[Execution]:
        """Return recorded executions, newest first where the store can."""

    def counts(self) -> Mapping[tuple[str, State], int]:
        """Return how many executions per task and state were counted: final ones since ever, others now."""

    def purge(self, limit: int = 1000) -> int:
        """Delete what is final and kept long enough; return how many."""

    def close(self) -> None:
        """Release connections. The store may be used again."""


@runtime_checkable
class Transactional(Protocol):
    """What a store can do beside :class:`Store` where business data live in the same database."""

    def in_transaction(self) -> bool:
        """Whether the calling thread has a transaction open that :meth:`reserve_joined` would join."""

    def reserve_joined(self, trigger: Trigger, *, resend_after: int) -> Reserved | Standing | Mismatch:
        """As :meth:`Store.reserve`, in the caller's transaction: the record is there if and only if that
        commits. Takes no lock that another step would wait for. Raises
        :class:`~celery_guard.core.errors.StoreUnavailableError`."""

    def after_commit(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once the caller's transaction is committed, never after a roll-back."""
