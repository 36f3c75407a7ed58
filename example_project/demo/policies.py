"""The demo's second act: the same six triggers meet each overlap policy, side by side."""

import time
from dataclasses import dataclass

from celery_guard import Overlap, State, store_of
from example_project.config.celery import app
from example_project.demo.screen import Screen
from example_project.demo.servers import Servers

TRIGGERS = 6
EVERY = 0.25  # seconds between two of them: a body takes three times as long
WORKER = "stage"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What became of one trigger, as its record says. Times are seconds since the first trigger."""

    policy: Overlap
    number: int
    state: State
    reason: str
    came: float
    started: float | None
    ended: float


def play(servers: Servers, screen: Screen) -> list[Seen]:
    """Send the triggers, wait until each has a final state, and read what is recorded."""
    servers.start_stage(WORKER)
    servers.await_worker(WORKER)
    from example_project.demo.stage import TASKS

    screen.step(f"the same {TRIGGERS} triggers, {EVERY} s apart, for each policy")
    ids = {}
    for number in range(1, TRIGGERS + 1):
        for policy, task in TASKS.items():
            ids[policy, number] = task.delay(number).id
        time.sleep(EVERY)  # the pace of the triggers is what is shown
    store = store_of(app)

    def record(policy: Overlap, number: int):  # type: ignore[no-untyped-def]
        return store.get(f"stage.{policy}#{ids[policy, number]}")

    def all_final() -> bool:
        found = [record(*key) for key in ids]
        done = sum(one is not None and one.state.final for one in found)
        screen.progress(f"{done} of {len(ids)} triggers have their end")
        return done == len(ids)

    servers.wait(all_final, 60, "an end for every trigger")
    records = {key: record(*key) for key in ids}
    began = min(one.created_at for one in records.values())
    return [
        Seen(
            policy=policy,
            number=number,
            state=one.state,
            reason=one.reason,
            came=(one.created_at - began) / 1000,
            started=None if one.started_at is None else (one.started_at - began) / 1000,
            ended=(one.finished_at - began) / 1000,
        )
        for (policy, number), one in records.items()
    ]


def at_once(seen: list[Seen], policy: Overlap) -> int:
    """The most executions of a policy that ran at the same time."""
    edges = []
    for one in seen:
        if one.policy is policy and one.started is not None:
            edges += [(one.started, 1), (one.ended, -1)]
    most = now = 0
    for _, change in sorted(edges, key=lambda edge: (edge[0], edge[1])):
        now += change
        most = max(most, now)
    return most
