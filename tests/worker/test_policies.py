"""What callers see: for each policy and each limit whoever waits on ``.get()`` gets an answer, whatever the trigger
is part of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult

from celery_guard import Guard, GuardedTask, LeaseLostError, LockTimeoutError, State, outcome_of
from celery_guard.core.contract import Acquired, Done, Finish, Trigger
from celery_guard.worker import execution
from celery_guard.worker.runtime import runtime_of

from .deliveries import Fleet


class Scene:
    """A task under test, others around it, and somebody who may hold its lock."""

    def __init__(self, guard: Guard) -> None:
        self.fleet = Fleet()
        self.fleet.clock.now = time.time() + 60  # what is published is older, by a minute or so
        self.ran: list[Any] = []
        self.held: Acquired | None = None
        self.task = self.define("body", self._body(), guard)
        self.beside = self.define("beside", lambda self, n: n, Guard(overlap="allow"))
        self.total = self.define("total", lambda self, parts: parts, Guard(overlap="allow"))

    def define(self, name: str, body: Any, guard: Guard) -> Any:
        body.__name__ = "body"
        options = {"bind": True, "base": GuardedTask, "shared": False, "guard": guard}
        return self.fleet.app.task(name=f"t.{name}", **options)(body)

    def _body(self) -> Any:
        def body(task: Any, n: Any) -> Any:
            self.ran.append(n)
            return n

        return body

    def hold(self) -> None:
        """Take the task's lock."""
        trigger = Trigger(
            key="holder", task="t.body", lock_key="t.body", trigger_id="holder", fingerprint="", message="",
            lease=86_400_000, order=1,
        )  # fmt: skip
        answer = self.fleet.store.begin(trigger, owner="holder/1").answer
        assert isinstance(answer, Acquired)
        self.held = answer

    def release(self) -> None:
        assert self.held is not None
        done = self.fleet.store.finish(Finish(lease=self.held.lease, state=State.SUCCEEDED))
        assert isinstance(done, Done)
        runtime_of(self.fleet.app).send(done.dispatches)

    def later(self, seconds: float) -> None:
        """Time passes, and the dispatcher looks."""
        self.fleet.clock.advance(seconds)
        self.fleet.sweep()

    def newer(self) -> None:
        """Another trigger comes, a moment later."""
        self.task.delay("newer")
        self.fleet.clock.advance(0.01)
        self.fleet.work()

    def close(self) -> None:
        """A success closes the lock for a while."""
        self.task.delay("first")
        self.fleet.work()
        assert self.ran == ["first"]


RESULT = "x"


@dataclass(frozen=True, kw_only=True)
class Case:
    guard: Guard
    #: the body's result, a marker's state, or an error
    sees: Any
    #: before the trigger, and once it was delivered for the first time
    before: Callable[[Scene], None] = Scene.hold
    after: list[Callable[[Scene], None]] = field(default_factory=lambda: [Scene.release])


def after(seconds: float) -> Callable[[Scene], None]:
    return lambda scene: scene.later(seconds)


def nothing(scene: Scene) -> None:
    """There is nothing to do."""


QUIET = {"overlap": "coalesce", "debounce": 10}
CASES = {
    "skip": Case(guard=Guard(), sees=State.SKIPPED),
    "wait": Case(guard=Guard(overlap="wait"), sees=RESULT),
    "wait, too long": Case(
        guard=Guard(overlap="wait", wait_for=30), sees=LockTimeoutError, after=[after(31)]
    ),
    "wait, too old": Case(
        guard=Guard(overlap="wait", max_waiting_age="1h"), sees=TaskRevokedError, after=[after(3600)]
    ),
    "queue": Case(guard=Guard(overlap="queue"), sees=RESULT),
    "queue, full": Case(guard=Guard(overlap="queue", max_queue=0), sees=State.SKIPPED),
    "queue, too old": Case(
        guard=Guard(overlap="queue", max_waiting_age="1h"), sees=TaskRevokedError, after=[after(3600)]
    ),
    "coalesce": Case(guard=Guard(overlap="coalesce"), sees=RESULT),
    "coalesce, older": Case(guard=Guard(overlap="coalesce"), sees=State.COALESCED, after=[Scene.newer]),
    "coalesce, the oldest": Case(
        guard=Guard(overlap="coalesce", arguments="oldest"),
        sees=RESULT,
        after=[Scene.newer, Scene.release],
    ),
    "replace": Case(guard=Guard(overlap="replace"), sees=RESULT, after=[]),
    "allow": Case(guard=Guard(overlap="allow"), sees=RESULT, after=[]),
    "a slot is free": Case(guard=Guard(slots=2), sees=RESULT, after=[]),
    "throttled, skip": Case(guard=Guard(throttle="1h"), sees=State.SKIPPED, before=Scene.close, after=[]),
    "throttled, replace": Case(
        guard=Guard(throttle="1h", overlap="replace"), sees=State.SKIPPED, before=Scene.close, after=[]
    ),
    "throttled, wait": Case(
        guard=Guard(throttle="1h", overlap="wait"), sees=RESULT, before=Scene.close, after=[after(3600)]
    ),
    "throttled, queue": Case(
        guard=Guard(throttle="1h", overlap="queue"), sees=RESULT, before=Scene.close, after=[after(3600)]
    ),
    "throttled, coalesce": Case(
        guard=Guard(throttle="1h", overlap="coalesce"), sees=RESULT, before=Scene.close, after=[after(3600)]
    ),
    "debounced": Case(guard=Guard(**QUIET), sees=RESULT, before=nothing, after=[after(11)]),
    "debounced, older": Case(guard=Guard(**QUIET), sees=State.COALESCED, before=nothing, after=[Scene.newer]),
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the trigger is part of: how it is sent, and what its answer is there."""

    send: Callable[[Scene], Any]
    pick: Callable[[Any], Any] = lambda answer: answer
    #: what may stand for a member's error
    errors: tuple[type[Exception], ...] = ()


SHAPES = {
    "alone": Shape(send=lambda s: s.task.delay("x")),
    "chain": Shape(send=lambda s: chain(s.task.s("x"), s.beside.s(), s.beside.s()).apply_async()),
    "chain, by id": Shape(
        send=lambda s: AsyncResult(
            chain(s.task.s("x"), s.beside.s(), s.beside.s()).apply_async().id, app=s.fleet.app
        )
    ),
    "group": Shape(
        send=lambda s: group([s.beside.s(1), s.task.s("x"), s.beside.s(2)]).apply_async(),
        pick=lambda answer: answer[1],
    ),
    "chord": Shape(
        send=lambda s: chord([s.beside.s(1), s.task.s("x"), s.beside.s(2)])(s.total.s()),
        pick=lambda answer: answer[1],
        errors=(ChordError,),
    ),
}


def check(scene: Scene, case: Case, shape: Shape) -> None:
    case.before(scene)
    result = shape.send(scene)
    scene.fleet.clock.advance(0.01)
    scene.fleet.work()
    for step in case.after:
        step(scene)
        scene.fleet.work()
    if isinstance(case.sees, type):
        with pytest.raises((case.sees, *shape.errors)):
            result.get(timeout=2)
        return
    answer = shape.pick(result.get(timeout=2))
    if isinstance(case.sees, State):
        marker = outcome_of(answer)
        assert marker is not None, answer
        assert marker["celery_guard"] == case.sees
        assert marker["by"]
        assert "x" not in scene.ran
    else:
        assert answer == case.sees
        assert scene.ran.count("x") == 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_whoever_waits_gets_an_answer(case: str, shape: str) -> None:
    check(Scene(CASES[case].guard), CASES[case], SHAPES[shape])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("parked", [False, True], ids=["at once", "parked"])
def test_what_is_too_late_to_start_is_revoked(
    shape: str, parked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(Guard(overlap="queue"))
    latest = int(scene.fleet.clock.now * 1000) + (3_600_000 if parked else 0)
    identify = execution.identify

    def limited(*args: Any, **options: Any) -> Trigger:
        trigger = identify(*args, **options)
        return replace(trigger, start_by=latest) if trigger.task == "t.body" else trigger

    monkeypatch.setattr(execution, "identify", limited)
    case = Case(
        guard=scene.task.guard_options,
        sees=TaskRevokedError,
        before=Scene.hold if parked else nothing,
        after=[after(3600)],
    )
    check(scene, case, SHAPES[shape])
    assert scene.ran == []


@pytest.mark.parametrize("shape", SHAPES)
def test_the_replaced_one_is_told_and_its_caller_sees_who_took_its_place(shape: str) -> None:
    told: list[Any] = []
    newer: list[Any] = []
    scene = Scene(Guard(overlap="replace"))

    def body(task: Any, n: Any) -> Any:
        if n == "newer":
            return n
        task.guard.check()
        newer.append(scene.task.delay("newer"))
        scene.fleet.clock.advance(0.01)
        scene.fleet.work()
        try:
            task.guard.check(ask_store=True)
        except LeaseLostError as error:
            told.append(error)
            raise
        return n

    scene.task = scene.define("told", body, Guard(overlap="replace"))
    result = SHAPES[shape].send(scene)
    scene.fleet.work()
    marker = outcome_of(SHAPES[shape].pick(result.get(timeout=2)))
    assert marker is not None
    assert marker["celery_guard"] == "replaced"
    assert marker["by"].endswith(newer[0].id)
    assert newer[0].get(timeout=2) == "newer"
    assert len(told) == 1


def test_all_of_a_group_under_coalesce_are_answered() -> None:
    scene = Scene(Guard(overlap="coalesce"))
    scene.hold()
    result = group([scene.task.s(n) for n in range(5)]).apply_async()
    scene.fleet.clock.advance(0.01)
    scene.fleet.work()
    scene.release()
    scene.fleet.work()
    answers = result.get(timeout=2)
    assert [bool(outcome_of(answer)) for answer in answers] == [True] * 4 + [False]
    assert answers[4] == 4
    assert scene.ran == [4]


def test_a_burst_under_debounce_makes_one_run_with_the_newest_arguments() -> None:
    scene = Scene(Guard(overlap="coalesce", debounce=10))
    results = []
    for n in range(10):
        results.append(scene.task.delay(n))
        scene.later(5)
        scene.fleet.work()
    assert scene.ran == []
    scene.later(10)
    scene.fleet.work()
    assert scene.ran == [9]
    assert results[9].get(timeout=2) == 9
    assert all(outcome_of(result.get(timeout=2)) for result in results[:9])


def test_three_slots_hold_three_bodies() -> None:
    scene = Scene(Guard(slots=3))
    depth: list[int] = []

    def body(task: Any, n: int) -> int:
        depth.append(n)
        if n < 5:
            scene.task.delay(n + 1)
            scene.fleet.work()
        return n

    scene.task = scene.define("nested", body, Guard(slots=3))
    scene.task.delay(1)
    scene.fleet.work()
    assert depth == [1, 2, 3]


def test_a_failure_throttles_only_where_that_is_asked_for() -> None:
    for failures in (False, True):
        scene = Scene(Guard())

        def body(task: Any, n: int) -> int:
            raise KeyError(n)

        task = scene.define("fails", body, Guard(throttle="1h", throttle_failures=failures))
        first, second = task.delay(1), None
        scene.fleet.work()
        with pytest.raises(KeyError):
            first.get(timeout=2)
        second = task.delay(2)
        scene.fleet.work()
        if failures:
            marker = outcome_of(second.get(timeout=2))
            assert marker is not None
            assert marker["reason"] == f"throttled after t.fails#{first.id}"
        else:
            with pytest.raises(KeyError):
                second.get(timeout=2)


def test_eager_mode_has_nobody_to_wait_for_quiet() -> None:
    scene = Scene(Guard(overlap="coalesce", debounce=10))
    scene.fleet.app.conf.task_always_eager = True
    assert scene.task.delay("x").get() == "x"
