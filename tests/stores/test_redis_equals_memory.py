"""The Lua scripts decide as ``core/rules`` does: the same random life, on both, compared after every step.

A seed that fails is the whole report: it always draws the same life. ``CELERY_GUARD_FUZZ_SEEDS`` draws more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from celery_guard.core.contract import (
    Acquired,
    Begun,
    Dispatch,
    Done,
    Finish,
    Finishing,
    Lease,
    Store,
    Trigger,
)
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.stores.memory import MemoryStore
from celery_guard.testing.conformance.scene import SteppedClock
from celery_guard.testing.servers import RedisServer, ValkeyServer

redis = pytest.importorskip("redis")

from celery_guard.stores.redis import RedisStore  # noqa: E402

pytestmark = pytest.mark.real

STEPS = 250
SEEDS = range(int(os.environ.get("CELERY_GUARD_FUZZ_SEEDS", "12")))
KEYS = [f"task:{name}" for name in ("a", "b", "c", "d", "ä:{e}")]
LOCKS = ["task", "other lock"]


@pytest.fixture(scope="module", params=[RedisServer, ValkeyServer], ids=["redis", "valkey"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if reason := request.param.available():
        pytest.skip(reason)
    with request.param() as server:
        yield server.url


def sent(dispatches: Any) -> list[Dispatch]:
    return list(dispatches)


def plain(answer: Any) -> Any:
    """An answer that compares whatever sequences a store uses."""
    if hasattr(answer, "dispatches"):
        answer = replace(answer, dispatches=sent(answer.dispatches))
    if hasattr(answer, "lost"):
        answer = replace(answer, lost=list(answer.lost))
    if isinstance(answer, list | tuple):
        return [plain(item) for item in answer]
    return answer


class Pair:
    """Two stores that live the same life."""

    def __init__(self, reference: Store, tried: Store, clock: SteppedClock) -> None:
        self.reference, self.tried, self.clock = reference, tried, clock
        self.log: list[str] = []

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.log.append(f"{self.clock.milliseconds % 10**8}: {name}{args}{kwargs}")
        expected = plain(getattr(self.reference, name)(*args, **kwargs))
        got = plain(getattr(self.tried, name)(*args, **kwargs))
        assert got == expected, self.story("the answers differ", expected, got)
        for key in KEYS:
            there, here = self.reference.get(key), self.tried.get(key)
            assert here == there, self.story(f"the records of {key} differ", there, here)
        return expected

    def compare_views(self) -> None:
        expected = {key: count for key, count in self.reference.counts().items() if count}
        got = dict(self.tried.counts())
        assert got == expected, self.story("the counts differ", expected, got)
        for task in (None, "task", "no such task"):
            there = list(self.reference.executions(task=task))
            here = list(self.tried.executions(task=task))
            assert sorted(here, key=lambda e: e.key) == sorted(there, key=lambda e: e.key)
            assert [e.created_at for e in here] == [e.created_at for e in there]

    def story(self, what: str, expected: Any, got: Any) -> str:
        return "\n".join([what, f"memory: {expected}", f"redis:  {got}", *self.log[-25:]])


class Life:
    """Draws what happens next. Only the random source decides, so a seed is a life."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.draw = random.Random(seed)
        self.triggers: list[Trigger] = []
        self.leases: list[Lease] = []
        self.owners: list[str] = []
        # Each life leans to one policy, or its queues would never grow.
        self.policies = [list(Overlap)[seed % len(Overlap)]] * 6 + list(Overlap)
        #: how many of them ask for what is rare, and for how many slots
        self.rare = (0.0, 0.1, 0.6)[seed // len(Overlap) % 3]
        self.slots = (1, 1, 2, 3)[seed // 3 % 4]
        self.steps: list[tuple[int, Callable[[], None]]] = [
            (30, self.begin), (18, self.finish), (8, self.renew), (10, self.sweep), (9, self.elapse),
            (6, self.checkpoint), (6, self.verify), (5, self.reserve), (3, self.withdraw), (4, self.lose),
            (4, self.end), (2, self.revoke), (1, self.purge),
        ]  # fmt: skip

    def live(self, steps: int) -> None:
        weights, actions = zip(*self.steps, strict=True)
        for number in range(steps):
            self.draw.choices(actions, weights)[0]()
            if number % 20 == 0:
                self.pair.compare_views()
        self.pair.compare_views()

    # -- what is drawn ----------------------------------------------------------------------------

    def maybe(self, value: Any, chance: float = 0.5) -> Any:
        return value if self.draw.random() < chance else None

    def trigger(self) -> Trigger:
        draw, now = self.draw, self.pair.clock.milliseconds
        if self.triggers and draw.random() < 0.6:
            known = draw.choice(self.triggers[-12:])
            if draw.random() < 0.25:
                known = replace(known, reopen=True, overlap=draw.choice(self.policies))
            if draw.random() < 0.1:
                known = replace(known, lock_key=draw.choice(LOCKS), message=f"changed {len(self.triggers)}")
            return known
        number = len(self.triggers)
        overlap = draw.choice(self.policies)
        bounded = overlap in (Overlap.WAIT, Overlap.QUEUE)
        made = Trigger(
            key=draw.choice(KEYS),
            task="task",
            lock_key=draw.choice([*[LOCKS[0]] * 5, LOCKS[1]]),
            trigger_id=f"id-{number}",
            fingerprint=draw.choice([*["same"] * 12, "another"]),
            message=draw.choice([f"message {number}: \n\x00:+ €", f"{{{number}}}"]),
            source=draw.choice(["call", "beat", "backfill", "misfire"]),
            order=draw.choice([0, now, now - draw.randrange(30_000), now + 5_000]),
            scheduled_at=self.maybe(now - 1000),
            overlap=overlap,
            lease=draw.choice([500, 3_000, 60_000]),
            max_attempts=draw.choice([1, 2, 5]),
            keep=draw.choice([0, 1_000, 60_000, 600_000]),
            unique_for=draw.choice([0, 0, 30_000]),
            once_per_key=draw.random() < 0.15,
            reopen=draw.random() < 0.1,
            wait_for=self.maybe(draw.choice([0, 2_000, 90_000])) if bounded else None,
            max_queue=self.maybe(draw.choice([0, 1, 2])) if bounded else None,
            hold=draw.random() < 0.3,
        )
        if draw.random() < self.rare:
            made = replace(made, **self.rarely(now, overlap))
        self.triggers.append(made)
        return made

    def rarely(self, now: int, overlap: Overlap) -> dict[str, Any]:
        draw = self.draw
        throttle = self.maybe(draw.choice([1_000, 20_000]), 0.4)
        options: dict[str, Any] = {
            "slots": draw.choice([self.slots] * 5 + [1, 4]),
            "start_by": self.maybe(now + draw.choice([-1, 0, 1_000, 50_000]), 0.3),
            "throttle": throttle,
            "throttle_failures": bool(throttle) and draw.random() < 0.5,
            "entry": self.maybe(draw.choice(["settle", "a:b\n€"])),
        }
        if overlap in (Overlap.WAIT, Overlap.QUEUE, Overlap.COALESCE):
            options["max_waiting_age"] = self.maybe(draw.choice([0, 1_000, 40_000]), 0.3)
        if overlap is Overlap.COALESCE:
            options["debounce"] = self.maybe(draw.choice([500, 5_000]))
            options["max_delay"] = self.maybe(draw.choice([500, 10_000]))
            options["oldest"] = draw.random() < 0.4
        return options

    def lease(self) -> Lease | None:
        if not self.leases:
            return None
        lease = self.draw.choice(self.leases[-self.draw.choice([1, 2, 8]) :])
        if self.draw.random() < 0.1:
            lease = replace(lease, owner="stranger/1")
        if self.draw.random() < 0.1:
            lease = replace(lease, token=lease.token + self.draw.choice([-1, 1]))
        return lease

    # -- what happens -----------------------------------------------------------------------------

    def begin(self) -> None:
        if self.owners and self.draw.random() < 0.2:
            owner = self.draw.choice(self.owners[-5:])
        else:
            owner = f"delivery-{len(self.owners)}/{self.draw.randrange(10**6)}"
            self.owners.append(owner)
        begun: Begun = self.pair.call(
            "begin", self.trigger(), owner=owner, retries=self.draw.choice([0, 0, 0, 1, 2])
        )
        if isinstance(begun.answer, Acquired):
            self.leases.append(begun.answer.lease)

    def finish(self) -> None:
        if (lease := self.lease()) is None:
            return
        succeeded = [State.SUCCEEDED, State.RETRYING]
        finish = Finish(
            lease=lease,
            state=self.draw.choice([*succeeded, *sorted(Finishing)]),
            reason=self.draw.choice(["", "because"]),
            result=self.draw.choice([None, "", '{"r": 1}\r\n\x00']),
            message=self.draw.choice([None, "", f"next try {len(self.leases)}"]),
            retries=self.draw.choice([0, 1, 2]),
            delay=self.draw.choice([0, 2_000, 40_000]),
        )
        for _ in range(self.draw.choice([1, 1, 2])):  # an answer that was lost is asked for again
            self.pair.call("finish", finish)

    def renew(self) -> None:
        leases = [lease for lease in (self.lease() for _ in range(self.draw.randrange(4))) if lease]
        self.pair.call("renew", leases)

    def checkpoint(self) -> None:
        if (lease := self.lease()) is not None:
            self.pair.call("checkpoint", lease, self.draw.choice(["", "1000", "\x00+€\n"]))

    def verify(self) -> None:
        if (lease := self.lease()) is not None:
            self.pair.call("verify", lease)

    def reserve(self) -> None:
        self.pair.call("reserve", self.trigger(), resend_after=self.draw.choice([0, 5_000, 60_000]))

    def withdraw(self) -> None:
        if self.triggers:
            trigger = self.draw.choice(self.triggers[-4:])
            self.pair.call("withdraw", trigger.key, trigger.trigger_id)

    def lose(self) -> None:
        if (lease := self.lease()) is not None:
            delivery = self.draw.choice([lease.owner.partition("/")[0], lease.owner[:-9], "nobody"])
            self.pair.call("lose", lease.key, delivery, "its process died")

    def end(self) -> None:
        delivery = self.maybe(self.draw.choice(self.owners[-5:] or ["none/1"]).partition("/")[0])
        state = self.draw.choice([State.REVOKED, State.EXPIRED, State.FAILED])
        trigger = self.trigger()
        self.pair.call(
            "end",
            trigger,
            state=state,
            reason="from outside",
            delivery=delivery,
            retries=self.draw.choice([0, 0, 1]),
        )

    def revoke(self) -> None:
        self.pair.call("revoke", self.draw.choice(KEYS), "an operator")

    def purge(self) -> None:
        self.pair.call("purge", self.draw.choice([1000, 1000, 0]))

    def sweep(self) -> None:
        dispatcher = self.draw.choice(["first", "first", "second"])
        limit = self.draw.choice([100, 100, 1])
        self.pair.call("sweep", dispatcher, ttl=self.draw.choice([0, 1_000, 10_000]), limit=limit)

    def elapse(self) -> None:
        """To a boundary that somebody waits for, a millisecond before or after it, or on by a bit."""
        now = self.pair.clock.milliseconds
        records = [record for key in KEYS if (record := self.pair.reference.get(key))]
        edges = [record.expires_at for record in records if record.expires_at]
        edges += [
            record.finished_at + self.draw.choice([1_000, 30_000]) for record in records if record.finished_at
        ]
        edges = [edge + self.draw.choice([-1, 0, 0, 1]) for edge in edges]
        ahead = [edge for edge in edges if now < edge < now + 70_000]
        target = self.draw.choice(ahead) if ahead and self.draw.random() < 0.5 else None
        self.pair.clock.at(target or now + self.draw.choice([0, 1, 500, 3_000, 5_000, 61_000]))


@pytest.mark.parametrize("seed", SEEDS)
def test_redis_lives_the_life_of_the_reference(url: str, seed: int) -> None:
    clock = SteppedClock()
    tried = RedisStore(url, namespace=f"fuzz{seed}", clock=clock)
    redis.Redis.from_url(url).flushall()
    pair = Pair(MemoryStore(clock=clock), tried, clock)
    Life(pair, seed).live(STEPS)
    tried.close()


def test_the_lives_visit_every_answer_and_every_state(url: str) -> None:
    """A comparison of what never happens proves nothing."""
    seen: set[str] = set()

    class Noting(Pair):
        def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
            answer = super().call(name, *args, **kwargs)
            kind = getattr(answer, "answer", answer)
            reason = "" if name == "begin" else getattr(kind, "reason", "")
            seen.add(f"{name} {type(kind).__name__} {reason}".strip())
            seen.update(f"sent {item.why}" for item in getattr(answer, "dispatches", ()))
            if isinstance(answer, Done):
                seen.add(f"{name} {answer.state}")
            return answer

    states: set[State] = set()
    for seed in range(102, 120):
        clock = SteppedClock()
        redis.Redis.from_url(url).flushall()
        tried = RedisStore(url, clock=clock)
        reference = MemoryStore(clock=clock)
        Life(Noting(reference, tried, clock), seed).live(STEPS)
        states |= {state for _, state in tried.counts()}
        tried.close()
    answers = {
        f"begin {kind}" for kind in ("Acquired", "Answered", "InFlight", "Joined", "Parked", "Mismatch")
    }
    answers |= {f"{name} Done" for name in ("finish", "checkpoint", "verify", "lose", "end", "revoke")}
    answers |= {
        f"{name} Refused {reason}" for name in ("finish", "verify") for reason in ("expired", "superseded")
    }
    answers |= {"reserve Reserved", "reserve Standing", "reserve Mismatch"}
    answers |= {
        f"sent {why}" for why in ("joined", "released", "lost", "dead", "interrupted", "lock_timeout")
    }
    assert answers - seen == set()
    assert {State.DEAD, State.LOCK_TIMEOUT, State.COALESCED, State.REPLACED, State.SKIPPED} - states == set()
