"""Latencies of a store that holds little beside one that holds much, on the same server, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import redis

from bench.places import STORE, Places
from bench.sample import begun, finished, trigger
from bench.stats import percentile
from celery_guard.core.contract import Lease, Store

FEW = 1_000
#: Executions that lose their owner for one measurement of a sweep: as many as one sweep takes.
_LOST = 100
_LEASE = 10_000

Say = Callable[[str], None]
Open = Callable[..., Any]


@dataclass(kw_only=True)
class Timings:
    """Milliseconds, a value a round: the median of that round's calls, and the 99th of a hundred."""

    medians: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)

    def add(self, seconds: list[float]) -> None:
        """Take one round's calls."""
        self.medians.append(statistics.median(seconds) * 1000)
        self.tails.append(percentile(seconds, 0.99) * 1000)


#: What is timed, by operation: begin, finish, both, an idle sweep, a sweep that finds lost owners.
Operations = dict[str, Timings]


@dataclass(kw_only=True)
class Stored:
    """Timings by store, by how full it is; and stores that are not there with the reason."""

    count: int
    timings: dict[str, dict[int, Operations]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


def run(places: Places, *, count: int, rounds: int, calls: int, say: Say) -> Stored:
    """Measure Redis and PostgreSQL with 1,000 and with ``count`` finished executions."""
    found = Stored(count=count)
    found.timings["redis"] = _measure("redis", _redis_stores(places, count, say), rounds, calls, say)
    if "postgres" in places.missing:
        found.broken["postgres"] = f"skipped: {places.missing['postgres']}"
    else:
        found.timings["postgres"] = _measure("postgres", _postgres_stores(count, say), rounds, calls, say)
    return found


def _redis_stores(places: Places, count: int, say: Say) -> Mapping[int, Open]:
    from bench import fill_redis
    from celery_guard.stores.redis import RedisStore

    url = places.url(STORE)
    stores: dict[int, Open] = {}
    with closing(redis.Redis.from_url(url)) as client:
        for many in (FEW, count):
            namespace = f"stored-{many}"
            say(f"redis: making {many:,} finished executions")
            with closing(RedisStore(url, namespace=namespace)) as store:
                fill_redis.fill(client, store, namespace, many)
            stores[many] = lambda clock=None, namespace=namespace: RedisStore(
                url, namespace=namespace, clock=clock
            )
    return stores


def _postgres_stores(count: int, say: Say) -> Mapping[int, Open]:
    from bench import fill_postgres
    from celery_guard.contrib.django.store import DjangoStore

    stores: dict[int, Open] = {}
    for alias, many in (("few", FEW), ("many", count)):
        say(f"postgres: making {many:,} finished executions")
        with closing(DjangoStore(alias)) as store:
            fill_postgres.fill(alias, store, many)
        stores[many] = lambda clock=None, alias=alias: DjangoStore(alias, clock=clock)
    return stores


def _measure(
    name: str, stores: Mapping[int, Open], rounds: int, calls: int, say: Say
) -> dict[int, Operations]:
    found: dict[int, Operations] = {many: {} for many in stores}
    for number in range(-1, rounds):  # the first one warms up
        order = list(stores) if number % 2 else list(stores)[::-1]
        seconds: dict[int, dict[str, list[float]]] = {}
        opened = {many: stores[many]() for many in order}
        try:
            for _ in range(calls):  # call by call in turns, so that both meet the same weather
                for many, store in opened.items():
                    _lap(store, seconds.setdefault(many, {}))
        finally:
            for store in opened.values():
                store.close()
        for many in order:
            _sweeps(stores[many], seconds[many])
            if number >= 0:
                for operation, values in seconds[many].items():
                    found[many].setdefault(operation, Timings()).add(values)
        if number >= 0:
            say(f"{name}: round {number + 1} of begin, finish and sweep")
    return found


def _lap(store: Store, seconds: dict[str, list[float]]) -> None:
    this = trigger()
    started = time.perf_counter()
    lease = begun(store, this)
    middle = time.perf_counter()
    finished(store, lease)
    ended = time.perf_counter()
    seconds.setdefault("begin", []).append(middle - started)
    seconds.setdefault("finish", []).append(ended - middle)
    seconds.setdefault("begin + finish", []).append(ended - started)


def _sweeps(open_store: Open, seconds: dict[str, list[float]]) -> None:
    """Time sweeps that find nothing, and one that finds owners whose lease has ended. They end by a
    clock that the store is given; nobody waits."""
    offset = 0.0
    with closing(open_store(lambda: time.time() + offset)) as store:
        for _ in range(20):
            taken = _timed(lambda: store.sweep("bench", ttl=3000))
            seconds.setdefault("sweep, nothing due", []).append(taken)
        leases = [begun(store, trigger(lease=_LEASE)) for _ in range(_LOST)]
        offset = _LEASE / 1000 + 1
        seconds[f"sweep, {_LOST} lost"] = [_timed(lambda: _sweep_all(store, leases))]
        for lease in leases:
            store.revoke(lease.key, "bench")
        # What was sent for them is nobody's business any more.
        for _ in range(3):
            offset += 400
            store.sweep("bench", ttl=3000, limit=1000)


def _sweep_all(store: Store, leases: list[Lease]) -> None:
    lost: set[str] = set()
    while len(lost) < len(leases):
        sweep = store.sweep("bench", ttl=3000, limit=_LOST)
        assert sweep.leader, "another dispatcher sweeps this store"
        if not sweep.lost:
            break
        lost.update(sweep.lost)


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
