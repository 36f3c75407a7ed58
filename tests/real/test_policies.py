"""Policies and limits with real workers: streams of triggers, workers that are down, holders that die."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import redis

from celery_guard.core.states import State
from celery_guard.testing.processes import wait_until
from celery_guard.testing.servers.redis import RedisServer

from .lab import Lab

pytestmark = pytest.mark.real

APP = """
def job(name, body=None, **options):
    def run(self, n, seconds=0.0):
        log("start", task=name, n=n, token=self.guard.token, attempt=self.guard.attempt)
        try:
            body(self) if body else pause(self, seconds)
        except Exception as exc:
            log("told", task=name, n=n, error=type(exc).__name__)
            raise
        log("end", task=name, n=n, token=self.guard.token)
        return n
    run.__name__ = name
    return task(**{"lease": 6, **options})(run)
def pause(self, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        self.guard.check(ask_store=True)
def until_open(self):
    while not os.path.exists("open"): time.sleep(0.05)
def kind(result):
    try: value = result.get(timeout=60)
    except Exception as exc: return type(exc).__name__
    return value["celery_guard"] if isinstance(value, dict) else "result"
skip, wait, queue, coalesce, replace, allow = (
    job(policy, overlap=policy) for policy in ("skip", "wait", "queue", "coalesce", "replace", "allow"))
"""

#: What a caller gets, by the state of its trigger.
KINDS = {State.SUCCEEDED: "result", **{s: str(s) for s in (State.SKIPPED, State.COALESCED, State.REPLACED)}}


def spans(it: Lab, task: str) -> list[tuple[float, float]]:
    """When each body of a task that came to its end ran, by when it started."""
    ends = {record["token"]: record["at"] for record in it.bodies.read("end", task=task)}
    starts = it.bodies.read("start", task=task)
    return sorted((s["at"], ends[s["token"]]) for s in starts if s["token"] in ends)


def one_at_a_time(it: Lab, task: str) -> None:
    for (_, ended), (started, _) in itertools.pairwise(spans(it, task)):
        assert started >= ended, f"two bodies of {task} at once"


def most_at_once(it: Lab, task: str) -> int:
    moments = [(at, step) for span in spans(it, task) for at, step in zip(span, (1, -1), strict=True)]
    return max(itertools.accumulate(step for _, step in sorted(moments)))


def numbers(records: Iterable[dict[str, Any]]) -> list[int]:
    return [record["n"] for record in records]


def settled(it: Lab, task: str, count: int, timeout: float = 60) -> Counter[State]:
    """Wait until all of a task's triggers have ended, and return how: each in one final state, each counted."""

    def all_ended() -> bool:
        states = it.states(task)
        return len(states) == count and all(state.final for state in states)

    wait_until(all_ended, timeout, f"{count} triggers of {task} to end")
    found = Counter(it.states(task))
    counted = {
        state: many
        for (name, state), many in it.store().counts().items()
        if name == f"labapp.{task}" and many
    }
    assert counted == found
    return found


def test_a_stream_of_triggers_faster_than_the_body(lab: Callable[..., Lab]) -> None:
    """A trigger every 0.3 s, a body of a second (the first of three, so that a slow machine's second trigger finds
    it running): each policy does what it says with each trigger."""
    it = lab()
    it.app_text(APP)
    it.worker("A", concurrency=4)
    many = 8

    def stream(*tasks: str) -> dict[str, list[str]]:
        answers = it.run(
            f"tasks = dict({', '.join(f'{name}={name}' for name in tasks)})\n"
            "sent = {name: [] for name in tasks}\n"
            f"for n in range({many}):\n"
            "    for name, one in tasks.items(): sent[name].append(one.delay(n, 1.0 if n else 3.0))\n"
            # the first ones have begun before the second ones come, however slow the first task of a process is
            "    if n == 0: [LOG.wait_for('start', task=name, n=0) for name in tasks]\n"
            "    time.sleep(0.3)\n"  # the interval itself
            "import json\n"
            "print(json.dumps({name: [kind(r) for r in results] for name, results in sent.items()}))"
        )
        return dict(json.loads(answers))

    # two at most: each has one process at a time, and it takes a free one to say what a trigger means
    answers = {
        **stream("skip", "coalesce"),
        **stream("wait", "queue"),
        **stream("replace"),
        **stream("allow"),
    }
    ended = {task: settled(it, task, many) for task in answers}
    for task, states in ended.items():
        assert Counter(answers[task]) == Counter({KINDS[state]: n for state, n in states.items()}), task
        bodies = it.bodies.count("start", task=task)
        assert bodies == states[State.SUCCEEDED] + states[State.REPLACED], task
        if task not in ("allow", "replace"):
            one_at_a_time(it, task)
    for task in ("wait", "queue"):
        assert ended[task] == {State.SUCCEEDED: many}
        assert numbers(it.bodies.read("start", task=task)) == list(range(many))
    assert set(ended["skip"]) == {State.SUCCEEDED, State.SKIPPED}
    assert set(ended["coalesce"]) == {State.SUCCEEDED, State.COALESCED}
    ran = numbers(it.bodies.read("start", task="coalesce"))
    assert ran == sorted(ran) and ran[-1] == many - 1, "the last run has the newest arguments"
    assert answers["coalesce"][-1] == answers["replace"][-1] == "result"
    # one that is delivered after a newer one is skipped for it
    assert ended["replace"][State.SUCCEEDED] == 1 and ended["replace"][State.REPLACED] >= 2
    told = it.bodies.count("told", task="replace", error="LeaseLostError")
    assert told == ended["replace"][State.REPLACED]
    assert numbers(it.bodies.read("end", task="replace")) == [many - 1]
    assert ended["allow"] == {State.SUCCEEDED: many}
    assert most_at_once(it, "allow") > 1


def test_two_hundred_triggers_that_came_while_the_workers_were_down(lab: Callable[..., Lab]) -> None:
    it = lab()
    it.app_text(
        APP
        + """
newest, polls, books = (
    job(name, until_open, overlap=policy)
    for name, policy in (("newest", "coalesce"), ("polls", "skip"), ("books", "queue")))
"""
    )
    many = 200
    it.run(f"for one in (newest, polls, books):\n    for n in range({many}): one.delay(n)")
    it.worker("A", concurrency=4)
    it.wait_state(State.COALESCED, count=many - 2, task="newest", timeout=60)
    it.wait_state(State.SKIPPED, count=many - 1, task="polls", timeout=60)
    it.wait_state(State.WAITING, count=many - 1, task="books", timeout=60)
    (it.folder / "open").touch()
    ended = {task: settled(it, task, many) for task in ("newest", "polls", "books")}
    ran = {task: numbers(it.bodies.read("start", task=task)) for task in ended}
    # all were there before the first body: that one, which was first in a process, and one for all others
    assert ended["newest"] == {State.SUCCEEDED: 2, State.COALESCED: many - 2}
    assert len(ran["newest"]) == 2 and ran["newest"][1] == many - 1
    assert ended["polls"] == {State.SUCCEEDED: 1, State.SKIPPED: many - 1}
    assert len(ran["polls"]) == 1
    assert ended["books"] == {State.SUCCEEDED: many}
    # four processes take the first messages at the same moment; whoever waits, waits in order
    first = ran["books"][0]
    assert ran["books"] == [first, *(n for n in range(many) if n != first)] and first < 4
    for task in ended:
        one_at_a_time(it, task)


def test_those_that_wait_take_no_process_from_others(lab: Callable[..., Lab]) -> None:
    it = lab()
    it.app_text(APP + "held = job('held', until_open, overlap='queue', scope='all')\n")
    it.worker("A", concurrency=2)
    it.run("held.delay(0)")
    it.bodies.wait_for("start", task="held", n=0)
    it.run("for n in range(1, 21): held.delay(n)\nplain.delay('unrelated')")
    it.bodies.wait_for("plain", timeout=15)
    assert it.bodies.count("end") == 0, "it started while one held the lock and twenty waited"
    (it.folder / "open").touch()
    assert settled(it, "held", 21) == {State.SUCCEEDED: 21}
    assert numbers(it.bodies.read("start", task="held")) == list(range(21))
    one_at_a_time(it, "held")


def test_the_replaced_one_is_told_refused_and_never_runs_again(lab: Callable[..., Lab]) -> None:
    it = lab()
    it.app_text(
        APP
        + """
def deaf(self):
    while not os.path.exists("open"): time.sleep(0.05)
def hear(self):
    while self.request.args[0] == 0:
        time.sleep(0.05)
        self.guard.check()  # by the heartbeat alone: the store is not asked
hears = job("hears", lambda self: hear(self), overlap="replace", lease=3)
late = job("late", lambda self: self.request.args[0] == 0 and deaf(self), overlap="replace", lease=3)
"""
    )
    a = it.worker("A", concurrency=4)
    it.run("open('old', 'w').write(hears.delay(0).id + ' ' + late.delay(0).id)")
    it.bodies.wait_for("start", task="hears")
    it.bodies.wait_for("start", task="late")
    assert it.run("print(hears.delay(1).get(timeout=20), late.delay(1).get(timeout=20))") == "1 1"
    it.bodies.wait_for("told", task="hears", n=0, error="LeaseLostError")
    (it.folder / "open").touch()  # the deaf one returns its value, too late
    it.bodies.wait_for("end", task="late", n=0)
    olds = (it.folder / "old").read_text().split()
    answers = it.run(f"print([kind(app.AsyncResult(id)) for id in {olds}])")
    assert answers == "['replaced', 'replaced']"
    for task in ("hears", "late"):
        assert settled(it, task, 2) == {State.REPLACED: 1, State.SUCCEEDED: 1}
    a.sigkill_group()
    it.worker("B")
    it.run("plain.delay(1)")
    it.bodies.wait_for("plain")
    for task in ("hears", "late"):
        assert numbers(it.bodies.read("start", task=task)) == [0, 1]


def test_those_that_wait_outlive_a_killed_holder(lab: Callable[..., Lab]) -> None:
    it = lab()
    it.app_text(APP + "held = job('held', until_open, overlap='queue')\n")
    it.worker("A", concurrency=2)
    it.run("held.delay(0)")
    it.bodies.wait_for("start", n=0)
    it.run("for n in range(1, 4): held.delay(n)")
    it.wait_state(State.WAITING, count=3)
    os.kill(it.starts()[0]["pid"], signal.SIGKILL)
    it.bodies.wait_for("start", n=0, attempt=2, timeout=20)
    (it.folder / "open").touch()
    assert settled(it, "held", 4) == {State.SUCCEEDED: 4}
    assert numbers(it.starts()) == [0, 0, 1, 2, 3]
    one_at_a_time(it, "held")


@pytest.mark.parametrize("flush", [False, True], ids=["broker kept", "broker emptied"])
def test_fifty_parked_outlive_the_whole_fleet(
    lab: Callable[..., Lab], lab_redis: RedisServer, flush: bool
) -> None:
    it = lab()
    it.app_text(APP + "held = job('held', until_open, overlap='queue', lease=3)\n")
    fleet = [it.worker(node, concurrency=2) for node in "AB"]
    it.run("held.delay(0)")
    it.bodies.wait_for("start")
    it.run("for n in range(1, 51): held.delay(n)")
    it.wait_state(State.WAITING, count=50)
    for worker in fleet:
        worker.sigkill_group()
    if flush:
        redis.Redis.from_url(it.env["BROKER"]).flushdb()
    (it.folder / "open").touch()
    it.worker("C", concurrency=2)
    assert settled(it, "held", 51) == {State.SUCCEEDED: 51}
    assert numbers(it.starts()) == [0, *range(51)]
    one_at_a_time(it, "held")


def test_slots_throttle_and_debounce(lab: Callable[..., Lab]) -> None:
    it = lab()
    it.app_text(
        APP
        + """
three = job("three", overlap="queue", slots=3)
throttled = job("throttled", throttle=4)
quiet = job("quiet", overlap="coalesce", debounce=1)
"""
    )
    it.worker("A", concurrency=6)
    got = it.run(
        """
threes = [three.delay(n, 0.5) for n in range(9)]
first = throttled.delay(1); first.get(timeout=20)
second = throttled.delay(2)
burst = [quiet.delay(n) for n in range(10)]
print([kind(second), [kind(r) for r in burst], [r.get(timeout=60) for r in threes]])
"""
    )
    assert got == str(["skipped", ["coalesced"] * 9 + ["result"], list(range(9))])
    assert most_at_once(it, "three") == 3
    assert numbers(it.bodies.read("start", task="quiet")) == [9]
    skipped = next(one for one in it.executions("throttled") if one.state is State.SKIPPED)
    assert skipped.reason == f"throttled after {skipped.by}"
    (first,) = it.bodies.read("end", task="throttled")
    opens = it.store().get(skipped.by).finished_at + 4000
    wait_until(lambda: it.store().now() >= opens, 10, "the lock to open")
    assert it.run("print(throttled.delay(3).get(timeout=20))") == "3"
    assert [first["n"], 3] == numbers(it.bodies.read("end", task="throttled"))
