"""What a conformance test stands on: connections, a clock in whole milliseconds, triggers, and a broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from celery_guard.core.clock import ManualClock
from celery_guard.core.contract import (
    Acquired,
    Begun,
    Dispatch,
    Done,
    Execution,
    Finish,
    Lease,
    Refused,
    Store,
    Sweep,
    Trigger,
)
from celery_guard.core.states import State

TASK = "conformance.task"
LOCK = "conformance.lock"
#: Fingerprints of two different payloads.
PAYLOAD = "0" * 64
OTHER_PAYLOAD = "1" * 64
MINUTE = 60_000


class SteppedClock(ManualClock):
    """A clock that stands in the middle of a millisecond, so that no rounding moves it to the next one."""

    def __init__(self, start: int = 1_900_000_000_000) -> None:
        super().__init__()
        self.at(start)

    def at(self, milliseconds: int) -> None:
        """Set the time, in whole milliseconds since the epoch."""
        self.milliseconds = milliseconds
        self.now = (milliseconds + 0.5) / 1000

    def elapse(self, milliseconds: int) -> None:
        """Move on; negative for a clock that is set back."""
        self.at(self.milliseconds + milliseconds)


class Scene:
    """One test's view of the store under test.

    Every call goes through another connection than the one before, so nothing that a client keeps for itself
    can hold a promise. ``clock`` is the store's clock, or None where the store goes by its own.
    """

    def __init__(self, connect: Callable[[], Store], clock: SteppedClock | None) -> None:
        self._connect = connect
        self._clock = clock
        self._opened: list[Store] = []
        self._turn = itertools.cycle([self.connect(), self.connect()])
        self._numbers = itertools.count(1)
        self._triggers: dict[str, Trigger] = {}

    # -- connections and time ---------------------------------------------------------------------

    def connect(self) -> Store:
        """Return a new connection of its own; it is closed with the scene."""
        store = self._connect()
        self._opened.append(store)
        return store

    @property
    def store(self) -> Store:
        """The store, through one of two separate connections, in turn."""
        return next(self._turn)

    @property
    def clock(self) -> SteppedClock:
        """The clock that this scene gave to the store."""
        assert self._clock is not None, "this scene goes by the store's own clock"
        return self._clock

    def now(self) -> int:
        """Return the store's time in ms."""
        return self.store.now()

    def elapse(self, milliseconds: int) -> None:
        """Let the store's clock move on."""
        self.clock.elapse(milliseconds)

    def close(self) -> None:
        """Close every connection that was opened here."""
        for store in self._opened:
            store.close()

    # -- triggers ---------------------------------------------------------------------------------

    def trigger(self, name: str = "one", **options: Any) -> Trigger:
        """Return a trigger with key ``name``, published a millisecond after all before it."""
        if self._clock is not None:
            self._clock.elapse(1)
        given: dict[str, Any] = {
            "key": name,
            "task": TASK,
            "lock_key": LOCK,
            "trigger_id": f"id-{name}",
            "fingerprint": PAYLOAD,
            "message": f'{{"message of": "{name}"}}',
            "order": self.now(),
        }
        return self._known(Trigger(**(given | options)))

    def another(self, trigger: Trigger, name: str = "another", **changes: Any) -> Trigger:
        """Return a second trigger of the same execution: another message with another id, published later."""
        return self.trigger(
            **{field: getattr(trigger, field) for field in trigger.__dataclass_fields__ if field != "order"}
            | {"trigger_id": f"id-{name}", "message": f'{{"message of": "{name}"}}'}
            | changes
        )

    def copy(self, trigger: Trigger, **changes: Any) -> Trigger:
        """Return the same message as a redelivery, a retry or a replay brings it."""
        return self._known(replace(trigger, **changes))

    def known(self, trigger_id: str) -> Trigger:
        """Return the trigger of this id as it was made last."""
        return self._triggers[trigger_id]

    def _known(self, trigger: Trigger) -> Trigger:
        self._triggers[trigger.trigger_id] = trigger
        return trigger

    def owner(self, delivery: str | None = None) -> str:
        """Return an owner that nobody had before; ``delivery`` is the part before the slash."""
        number = next(self._numbers)
        return f"{delivery or f'delivery-{number}'}/{number}"

    # -- what a worker does -----------------------------------------------------------------------

    def begin(self, trigger: Trigger, *, owner: str | None = None, retries: int = 0) -> Begun:
        """Deliver a message."""
        return self.store.begin(trigger, owner=owner or self.owner(), retries=retries)

    def acquire(self, trigger: Trigger, *, owner: str | None = None, retries: int = 0) -> Acquired:
        """Deliver a message that has to get the lease."""
        answer = self.begin(trigger, owner=owner, retries=retries).answer
        assert isinstance(answer, Acquired), answer
        return answer

    def hold(self, name: str = "holder", **options: Any) -> Acquired:
        """Let an execution take the lock, and keep it long."""
        return self.acquire(self.trigger(name, **({"lease": 60 * MINUTE} | options)))

    def end(self, held: Acquired | Lease, state: State = State.SUCCEEDED, **facts: Any) -> Done | Refused:
        """End an attempt, whoever may still own it."""
        lease = held.lease if isinstance(held, Acquired) else held
        return self.store.finish(Finish(lease=lease, state=state, **facts))

    def finish(self, held: Acquired | Lease, state: State = State.SUCCEEDED, **facts: Any) -> Done:
        """End an attempt that has to own its execution."""
        done = self.end(held, state, **facts)
        assert isinstance(done, Done), done
        return done

    def renew(self, lease: Lease) -> Done | Refused:
        """Renew one lease."""
        (answer,) = self.store.renew([lease])
        return answer

    def sweep(self, dispatcher: str = "dispatcher", *, ttl: int = 1000, limit: int = 100) -> Sweep:
        """Sweep once, as the one dispatcher there is."""
        swept = self.store.sweep(dispatcher, ttl=ttl, limit=limit)
        assert swept.leader
        return replace(swept, dispatches=list(swept.dispatches), lost=list(swept.lost))

    # -- looking ----------------------------------------------------------------------------------

    def record(self, key: str = "one") -> Execution:
        """Return the newest execution of a key, which has to be there."""
        found = self.store.get(key)
        assert found is not None, f"no execution of {key!r}"
        return found

    def state(self, key: str = "one") -> State:
        """Return where the newest execution of a key stands."""
        return self.record(key).state

    # -- a broker that loses nothing --------------------------------------------------------------

    def deliver(self, dispatches: Iterable[Dispatch]) -> list[str]:
        """Deliver messages in order, run to success what may run, and deliver what becomes due by that.

        Returns the keys of the executions that ran, in the order they did.
        """
        waiting = list(dispatches)
        ran: list[str] = []
        for _ in range(100_000):
            if not waiting:
                return ran
            dispatch = waiting.pop(0)
            trigger = self._triggers[dispatch.trigger_id]
            assert dispatch.message == trigger.message
            begun = self.begin(trigger)
            waiting.extend(begun.dispatches)
            if isinstance(begun.answer, Acquired):
                ran.append(trigger.key)
                waiting.extend(self.finish(begun.answer).dispatches)
        raise AssertionError("messages go round in circles")


def accepted(answer: Done | Refused, state: State) -> bool:
    """Say whether a write was accepted, left the execution in ``state``, and made no message due."""
    return isinstance(answer, Done) and answer.state is state and not answer.dispatches


def keys(dispatches: Sequence[Dispatch]) -> list[str]:
    """Return whose messages have to be sent."""
    return [dispatch.key for dispatch in dispatches]


def ids(dispatches: Sequence[Dispatch]) -> list[str]:
    """Return which messages have to be sent."""
    return [dispatch.trigger_id for dispatch in dispatches]
