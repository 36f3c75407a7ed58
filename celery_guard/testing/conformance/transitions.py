"""The table of states: every move in it that a call can make is made, and no call makes any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_guard.core.contract import Acquired, Finish, Finishing, Lease, Refused, Trigger
from celery_guard.core.errors import TransitionError
from celery_guard.core.options import Overlap
from celery_guard.core.rules import ENDINGS
from celery_guard.core.states import TRANSITIONS, State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene

S = State
Act = Callable[[Scene, "Subject"], object]


class Subject:
    """The execution that is moved: its trigger, its last lease, whoever holds the lock it wants."""

    def __init__(self, scene: Scene, **options: Any) -> None:
        self.scene = scene
        self.trigger: Trigger = scene.trigger(**options)
        self.lease: Lease | None = None
        self.holder: Acquired | None = None
        self.retries = 0

    def run(self) -> None:
        """Begin it, as delivery ``mine``."""
        self.lease = self.scene.acquire(self.trigger, owner=self.scene.owner("mine")).lease

    def end(self, state: State) -> None:
        """Run it to this state."""
        self.run()
        assert self.lease is not None
        self.retries = int(state is S.RETRYING)
        self.scene.finish(self.lease, state, message=self.trigger.message, retries=self.retries)

    def begin(self, **options: Any) -> None:
        """Deliver its message once more, perhaps with other options than before."""
        self.scene.begin(self.scene.copy(self.trigger, **options), retries=self.retries)

    def blocked(self, **options: Any) -> None:
        """Deliver its message while another, later one holds the lock."""
        if self.holder is None:
            holder = self.scene.trigger("holder", overlap=Overlap.QUEUE, lease=60 * MINUTE)
            answer = self.scene.begin(holder).answer
            self.holder = answer if isinstance(answer, Acquired) else None  # else somebody else holds it
        self.begin(**options)


def _arrive(state: State, subject: Subject) -> None:
    """Bring a subject into a state."""
    scene = subject.scene
    if state is S.PENDING:
        scene.store.reserve(subject.trigger, resend_after=1000)
    elif state is S.RUNNING:
        subject.run()
    elif state in Finishing:
        subject.end(state)
    elif state in (S.LOST, S.DEAD):
        subject.trigger = scene.copy(subject.trigger, max_attempts=1 if state is S.DEAD else 5)
        subject.run()
        scene.store.lose("one", "mine", "")
    elif state in (S.WAITING, S.LOCK_TIMEOUT):
        subject.trigger = scene.copy(subject.trigger, overlap=Overlap.WAIT, wait_for=MINUTE)
        subject.blocked()
        if state is S.LOCK_TIMEOUT:
            scene.elapse(MINUTE)
            scene.sweep()
    elif state is S.SKIPPED:
        subject.blocked(overlap=Overlap.SKIP)
    elif state is S.COALESCED:
        subject.blocked(overlap=Overlap.COALESCE)
    elif state is S.REPLACED:
        subject.run()
        scene.acquire(scene.trigger("newer", overlap=Overlap.REPLACE))
    else:
        scene.store.end(subject.trigger, state=state, reason="")
    assert scene.state() is state


def _finish_as(state: State) -> Act:
    def act(scene: Scene, subject: Subject) -> object:
        lease = subject.lease or Lease(key="one", lock_key="conformance.lock", owner="x/1", token=1, lease=1)
        return scene.store.finish(
            Finish(lease=lease, state=state, message=subject.trigger.message, retries=1)
        )

    return act


def _end_as(state: State) -> Act:
    def act(scene: Scene, subject: Subject) -> object:
        trigger = subject.trigger
        return scene.store.end(trigger, state=state, reason="", delivery="mine", retries=subject.retries)

    return act


def _free(scene: Scene, subject: Subject) -> object:
    return subject.holder and scene.finish(subject.holder)


def _begin(scene: Scene, subject: Subject) -> object:
    subject.begin()
    return None


def _takes_its_turn(scene: Scene, subject: Subject) -> object:
    scene.elapse(61 * MINUTE)  # the holder has gone silent, and nobody has noticed
    return _begin(scene, subject)


def _blocked(**options: Any) -> Act:
    return lambda scene, subject: subject.blocked(**options)


def _newer(overlap: Overlap) -> Act:
    def act(scene: Scene, subject: Subject) -> object:
        return scene.begin(scene.trigger("newer", overlap=overlap))

    return act


def _time_is_up(scene: Scene, subject: Subject) -> object:
    scene.elapse(MINUTE)
    return scene.sweep()


def _lose(scene: Scene, subject: Subject) -> object:
    return scene.store.lose("one", "mine", "")


def _dies_for_the_last_time(scene: Scene, subject: Subject) -> object:
    subject.trigger = scene.copy(subject.trigger, max_attempts=2)
    subject.run()
    return _lose(scene, subject)


def _revoke(scene: Scene, subject: Subject) -> object:
    return scene.store.revoke("one", "")


def _replay(scene: Scene, subject: Subject) -> object:
    return scene.store.reserve(scene.copy(subject.trigger, reopen=True), resend_after=1000)


_MEETS_ITS_POLICY: dict[State, Act] = {
    S.RUNNING: _begin,
    S.WAITING: _blocked(overlap=Overlap.WAIT),
    S.SKIPPED: _blocked(overlap=Overlap.SKIP),
    S.COALESCED: _blocked(overlap=Overlap.COALESCE),
}

_MAY_EXPIRE = (S.PENDING, S.WAITING, S.RETRYING, S.INTERRUPTED, S.LOST)
_DELIVERED = (S.PENDING, S.RETRYING, S.INTERRUPTED, S.LOST)

#: How a call makes each move.
MOVES: dict[tuple[State, State], Act] = {
    **{(old, new): act for old in _DELIVERED for new, act in _MEETS_ITS_POLICY.items()},
    **{(old, S.EXPIRED): _end_as(S.EXPIRED) for old in _MAY_EXPIRE},
    **{(old, S.REVOKED): _revoke for old in State if S.REVOKED in TRANSITIONS[old]},
    **{(S.RUNNING, new): _finish_as(new) for new in Finishing},
    **{(old, S.PENDING): _replay for old in (S.FAILED, S.DEAD, S.LOCK_TIMEOUT)},
    (S.PENDING, S.FAILED): _end_as(S.FAILED),
    (S.WAITING, S.PENDING): _free,
    (S.WAITING, S.RUNNING): _takes_its_turn,
    (S.WAITING, S.COALESCED): _blocked(overlap=Overlap.COALESCE),
    (S.WAITING, S.SKIPPED): _blocked(overlap=Overlap.SKIP),
    (S.WAITING, S.LOCK_TIMEOUT): _time_is_up,
    (S.RUNNING, S.LOST): _lose,
    (S.RUNNING, S.REPLACED): _newer(Overlap.REPLACE),
    (S.LOST, S.DEAD): _dies_for_the_last_time,
    (S.UNCERTAIN, S.FAILED): _end_as(S.FAILED),
}  # fmt: skip

#: Moves that no single call makes: three would lead over another state, and two are for settling effects.
BY_NO_CALL = frozenset(
    {
        (S.RETRYING, S.LOCK_TIMEOUT),
        (S.INTERRUPTED, S.REPLACED),
        (S.LOST, S.REPLACED),
        (S.UNCERTAIN, S.PENDING),
        (S.UNCERTAIN, S.SUCCEEDED),
    }
)

#: Every call that can move an execution.
ACTS: dict[str, Act] = {
    "begin": _begin,
    "begin while blocked, skip": _blocked(overlap=Overlap.SKIP),
    "begin while blocked, wait": _blocked(overlap=Overlap.WAIT),
    "begin while blocked, coalesce": _blocked(overlap=Overlap.COALESCE),
    "a newer one coalesces": _newer(Overlap.COALESCE),
    "a newer one replaces": _newer(Overlap.REPLACE),
    "time is up": _time_is_up,
    "lose": _lose,
    "revoke": _revoke,
    "replay": _replay,
    "the lock becomes free": _free,
    **{f"finish as {state}": _finish_as(state) for state in sorted(Finishing)},
    **{f"end as {state}": _end_as(state) for state in sorted(ENDINGS)},
}

ROWS = sorted((old, new) for old, targets in TRANSITIONS.items() for new in targets)


def _reachable(old: State, new: State) -> bool:
    """Whether one call may lead there, over states that it passes through: a lost one that begins again."""
    seen, todo = {old}, [old]
    while todo:
        for state in TRANSITIONS[todo.pop()] - seen:
            seen.add(state)
            if not state.final and state is not S.UNCERTAIN:
                todo.append(state)
    return new in seen


class Transitions(Harness):
    """The rows, one by one, and every call from every state."""

    def test_every_row_is_accounted_for(self) -> None:
        assert set(MOVES) | BY_NO_CALL == set(ROWS)

    @pytest.mark.parametrize(("old", "new"), sorted(MOVES), ids=str)
    def test_a_row_of_the_table_is_walked(self, scene: Scene, old: State, new: State) -> None:
        subject = Subject(scene)
        _arrive(old, subject)
        MOVES[(old, new)](scene, subject)
        assert scene.state() is new

    @pytest.mark.parametrize("act", ACTS)
    @pytest.mark.parametrize("old", list(State), ids=str)
    def test_no_call_makes_a_move_that_the_table_does_not_have(
        self, scene: Scene, old: State, act: str
    ) -> None:
        subject = Subject(scene)
        _arrive(old, subject)
        before = scene.record()
        answer = ACTS[act](scene, subject)
        after = scene.record()
        if after.number != before.number:
            return  # the next execution of the key: the old one is over and stays as it was
        assert after.state is old or _reachable(old, after.state)
        if isinstance(answer, Refused):
            assert after == before

    @pytest.mark.parametrize("state", sorted(set(State) - Finishing))
    def test_an_attempt_ends_in_no_other_state(self, scene: Scene, state: State) -> None:
        held = scene.acquire(scene.trigger())
        with pytest.raises(TransitionError):
            scene.end(held, state)
        assert scene.state() is State.RUNNING
        scene.finish(held)

    @pytest.mark.parametrize("state", sorted(set(State) - ENDINGS))
    def test_from_outside_it_ends_in_no_other_state(self, scene: Scene, state: State) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=MINUTE)
        before = scene.record()
        with pytest.raises(TransitionError):
            scene.store.end(trigger, state=state, reason="")
        assert scene.record() == before
