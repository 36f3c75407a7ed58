"""States: the table is the documented one, each addition has its reason, and no rule makes any other move."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from celery_guard.core.errors import TransitionError
from celery_guard.core.options import Overlap
from celery_guard.core.rules import Lock, Record, move
from celery_guard.core.states import FINAL, REOPENABLE, TRANSITIONS, State, may_move

#: The table of the design, row by row.
DESIGN = {
    "pending": "running waiting skipped coalesced expired revoked",
    "waiting": "pending running coalesced skipped lock_timeout expired revoked",
    "running": "succeeded failed retrying interrupted lost replaced uncertain revoked",
    "retrying": "running waiting skipped coalesced lock_timeout expired revoked",
    "interrupted": "running waiting coalesced replaced revoked",
    "lost": "running waiting skipped coalesced replaced dead revoked",
    "uncertain": "pending succeeded failed revoked",
}

#: What was added, with its reason.
ADDED = {
    ("pending", "failed"): "a payload that cannot be started fails without an attempt",
    ("interrupted", "skipped"): "skip finds the lock taken by a newcomer, as for lost",
    (
        "interrupted",
        "expired",
    ): "as for lost; else Celery would drop each message of it, and it would never end",
    ("lost", "expired"): "the message's own expiry passed before the next attempt",
    ("failed", "pending"): "an explicit replay",
    ("dead", "pending"): "an explicit replay",
    ("lock_timeout", "pending"): "an explicit replay",
}


class Unit:
    """As much of a store as a move needs."""

    now = 1_000_000

    def __init__(self) -> None:
        self.seen: list[State] = []

    def moved(self, record: Record) -> None:
        self.seen.append(record.state)

    def lock(self, lock_key: str) -> Lock:
        raise NotImplementedError

    def peek(self, key: str) -> Record | None:
        raise NotImplementedError

    load = head = peek

    def queued(self, lock_key: str) -> int:
        raise NotImplementedError

    def save(self, record: Record) -> None:
        raise NotImplementedError

    delete = save

    def save_lock(self, lock: Lock) -> None:
        raise NotImplementedError


def record(state: State) -> Record:
    return Record(
        key="key",
        number=1,
        task="task",
        lock_key="lock",
        trigger_id="id",
        fingerprint="f",
        message="m",
        source="call",
        overlap=Overlap.QUEUE,
        state=state,
        keep=1000,
        unique_for=5000,
        expires_at=5,
        due_at=5,
        sends=3,
        queued=True,
        result="r",
    )


def pairs(allowed: bool) -> Iterable[tuple[State, State]]:
    return [pair for pair in itertools.product(State, State) if may_move(*pair) is allowed]


def test_the_table_is_the_documented_one() -> None:
    documented = {(old, new) for old, targets in DESIGN.items() for new in targets.split()}
    table = {(str(old), str(new)) for old, targets in TRANSITIONS.items() for new in targets}
    assert table == documented | ADDED.keys()
    assert not documented & ADDED.keys()


def test_every_state_has_its_row() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {state for state in State if state.final} == set(FINAL)
    assert {state for state, targets in TRANSITIONS.items() if not targets} == FINAL - REOPENABLE
    assert all(TRANSITIONS[state] == {State.PENDING} for state in REOPENABLE)


def test_every_state_can_be_reached() -> None:
    reached = {new for targets in TRANSITIONS.values() for new in targets}
    assert reached == set(State)


@pytest.mark.parametrize(("old", "new"), pairs(allowed=True), ids=str)
def test_a_row_is_a_move(old: State, new: State) -> None:
    unit, moved = Unit(), record(old)
    move(unit, moved, new, "why", "who")
    assert (moved.state, moved.reason, moved.by, unit.seen) == (new, "why", "who", [new])
    if new.final:
        assert (moved.finished_at, moved.keep_until) == (unit.now, unit.now + 5000)
        assert (moved.due_at, moved.sends, moved.queued) == (None, 0, False)


@pytest.mark.parametrize(("old", "new"), pairs(allowed=False), ids=str)
def test_what_is_no_row_is_refused_and_changes_nothing(old: State, new: State) -> None:
    unit, moved = Unit(), record(old)
    with pytest.raises(TransitionError) as caught:
        move(unit, moved, new)
    assert (caught.value.facts["old"], caught.value.facts["new"]) == (str(old), str(new))
    assert moved == record(old)
    assert unit.seen == []


def test_states_are_text_for_sql_and_json() -> None:
    assert all(isinstance(state, str) and str(state) == state.value for state in State)
