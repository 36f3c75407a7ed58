"""How fast a queue behind one lock drains, by how many wait in it: real workers, the Redis store.

A holder keeps the lock until all others are parked. Then it ends, and each one's end wakes the next by a
message. The times are the store's own: when an execution ended, and when the next one's attempt began.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from bench.places import BROKER, ENV, LOCKS, STORE, Places
from bench.stats import percentile
from celery_guard.testing.processes import WorkerProcess
from celery_guard.testing.waiting import wait_until

SIZES = (1, 10, 10_000)
#: How many of a long queue are timed.
_TIMED = 300
_ROOT = Path(__file__).resolve().parents[1]

Say = Callable[[str], None]


@dataclass(kw_only=True)
class Drain:
    """Of one size: executions per second, and ms from a release to the next body's attempt, by round."""

    rates: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)


def run(places: Places, *, rounds: int, say: Say) -> dict[int, Drain]:
    """Measure every size in turns."""
    os.environ[ENV] = places.dumps()
    found = {size: Drain() for size in SIZES}
    for number in range(rounds):
        for size in SIZES if number % 2 else SIZES[::-1]:
            with _worker(places):
                # a short queue is over at once: as many of them as make a sample
                gaps, rates = [], []
                for _ in range(max(1, min(20, 200 // size))):
                    rate, found_gaps = _drain(places, size)
                    rates.append(rate)
                    gaps += found_gaps
                drain = found[size]
                drain.rates.append(statistics.median(rates))
                drain.medians.append(statistics.median(gaps))
                drain.tails.append(percentile(gaps, 0.99))
                say(f"round {number + 1}, {size:,} waiting: {drain.rates[-1]:,.0f}/s")
    return found


@contextmanager
def _worker(places: Places) -> Iterator[None]:
    """A worker, and nothing left of what waits at its end: a long queue is not drained to the last."""
    worker = WorkerProcess(
        app="bench.waiting_app",
        node="bench-waiting",
        concurrency=2,
        queues=["bench-waiting"],
        env={ENV: places.dumps()},
        cwd=_ROOT,
        log_level="WARNING",
    )
    with closing(worker):
        worker.start()
        yield
    for database in (BROKER, STORE):
        with closing(redis.Redis.from_url(places.url(database))) as client:
            client.flushdb()


def _drain(places: Places, size: int) -> tuple[float, list[float]]:
    from bench.waiting_app import GATE, waiting
    from celery_guard.stores.redis import RedisStore

    lock = f"{size}-{time.time_ns()}"
    with (
        closing(redis.Redis.from_url(places.url(BROKER))) as broker,
        closing(redis.Redis.from_url(places.url(LOCKS))) as gate,
        closing(RedisStore(places.url(STORE))) as store,
    ):
        gate.delete(GATE)
        keys = [_send(waiting, lock, 0)]
        wait_until(lambda: _state(store, keys[0]) == "running", 30, "the holder to run")
        keys += [_send(waiting, lock, number) for number in range(1, size + 1)]
        wait_until(
            lambda: not broker.llen("bench-waiting") and broker.hlen("unacked") == 1, 300, "all parked"
        )
        wait_until(lambda: _state(store, keys[-1]) == "waiting", 30, "the last one to be parked")
        gate.set(GATE, 1)
        timed = keys[: _TIMED + 1]
        wait_until(lambda: _state(store, timed[-1]) == "succeeded", 120, "those that are timed to end")
        records = [store.get(key) for key in timed]
        gaps = [b.started_at - a.finished_at for a, b in itertools.pairwise(records)]
        seconds = (records[-1].finished_at - records[0].finished_at) / 1000
        return (len(records) - 1) / max(seconds, 0.001), [float(gap) for gap in gaps]


def _send(task: Any, lock: str, number: int) -> str:
    return f"bench.waiting#{task.apply_async((lock, number)).id}"


def _state(store: Any, key: str) -> str:
    found = store.get(key)
    return str(found.state) if found else ""
