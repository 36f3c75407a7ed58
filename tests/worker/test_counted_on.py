"""A message that somebody counts on arrives, although another trigger stands for its work; and a task that is
replaced goes on."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain, chord, group

from celery_guard import Guard, GuardedTask

from .deliveries import Fleet


@pytest.fixture
def ran() -> list[Any]:
    return []


@pytest.fixture
def once(fleet: Fleet, ran: list[Any]) -> Any:
    def work(n: int) -> int:
        ran.append(n)
        return n

    return fleet.app.task(
        shared=False, name="t.once", base=GuardedTask, guard=Guard(key="{n}", overlap="allow")
    )(work)


@pytest.fixture
def after(fleet: Fleet, ran: list[Any]) -> Any:
    def work(value: Any) -> Any:
        ran.append(("after", value))
        return value

    return fleet.app.task(shared=False, name="t.after")(work)


def test_a_bare_duplicate_is_not_sent(fleet: Fleet, once: Any, ran: list[Any]) -> None:
    first = once.delay(1)
    assert once.delay(1).id == first.id
    assert len(fleet.messages()) == 1


@pytest.mark.parametrize("ended", [False, True], ids=["under way", "ended"])
def test_the_links_of_a_duplicate_run(
    fleet: Fleet, once: Any, after: Any, ran: list[Any], ended: bool
) -> None:
    once.delay(7)
    if ended:
        fleet.work()
    chained = chain(once.s(7), after.s()).apply_async()
    linked = once.apply_async((7,), link=after.s())
    fleet.work()
    assert (chained.get(timeout=1), linked.get(timeout=1)) == (7, 7)
    assert ran == [7, ("after", 7), ("after", 7)]


def test_the_members_of_a_group_and_a_chord_are_counted(fleet: Fleet, once: Any, after: Any) -> None:
    several = group(once.s(8), once.s(8)).apply_async()
    joined = chord([once.s(9), once.s(9)], after.s()).apply_async()
    fleet.work()
    assert several.get(timeout=1) == [8, 8]
    assert joined.get(timeout=1) == [9, 9]


def test_an_id_that_the_caller_chose_gets_its_answer(fleet: Fleet, once: Any, ran: list[Any]) -> None:
    once.delay(1)
    assert once.apply_async((1,), task_id="mine").id == "mine"
    fleet.work()
    assert fleet.app.AsyncResult("mine").get(timeout=1) == 1
    assert ran == [1]


@pytest.mark.parametrize("key", [None, "poll"])
def test_a_task_that_is_replaced_by_a_chain_that_ends_in_itself_goes_on(
    fleet: Fleet, ran: list[Any], key: str | None
) -> None:
    @fleet.app.task(shared=False, name="t.prepare")
    def prepare() -> str:
        ran.append("prepare")
        return "ready"

    @fleet.app.task(shared=False, name="t.steps", base=GuardedTask, bind=True, guard=Guard())
    def steps(self: Any, state: str = "new") -> str:
        ran.append(state)
        if state == "new":
            raise self.replace(chain(prepare.s(), self.s()))
        return "done"

    answer = steps.apply_async(guard={"key": key} if key else {})
    fleet.work()
    assert ran == ["new", "prepare", "ready"]
    assert answer.get(timeout=1) == "done"


def test_two_tasks_that_replace_each_other_go_on(fleet: Fleet, ran: list[Any]) -> None:
    @fleet.app.task(shared=False, name="t.a", base=GuardedTask, bind=True, guard=Guard())
    def a(self: Any, n: int) -> str:
        ran.append(("a", n))
        if n < 2:
            raise self.replace(b.s(n + 1))
        return "done"

    @fleet.app.task(shared=False, name="t.b", base=GuardedTask, bind=True, guard=Guard())
    def b(self: Any, n: int) -> None:
        ran.append(("b", n))
        raise self.replace(a.s(n + 1))

    answer = a.delay(0)
    fleet.work()
    assert ran == [("a", 0), ("b", 1), ("a", 2)]
    assert answer.get(timeout=1) == "done"


def test_a_copy_of_an_earlier_step_does_nothing(fleet: Fleet, ran: list[Any]) -> None:
    """Polling by replacement, with a backlog in which the dispatcher sends each step's message again."""

    @fleet.app.task(shared=False, name="t.poll", base=GuardedTask, bind=True, guard=Guard())
    def poll(self: Any, n: int) -> str:
        ran.append(n)
        if n < 3:
            raise self.replace(self.s(n + 1).set(countdown=30))
        return "done"

    poll.delay(0)
    (first,) = fleet.messages()
    fleet.deliver(first)
    for _ in range(6):
        fleet.clock.advance(10)
        fleet.sweep()
    fleet.deliver(first)
    fleet.work()
    assert ran == [0, 1, 2, 3]
