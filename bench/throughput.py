"""Tasks per second through a prefork worker, variant beside variant.

One run measures all, in rounds; the order turns with every round. A measurement publishes its tasks while
the variant's worker is stopped (SIGSTOP, as all the others are throughout), lets the worker go on and takes
the time until queue and unacknowledged messages are gone. Nothing is added to a task in order to measure it.
Results tell that every body ran; a variant whose bodies did not all run is reported as that.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from bench.apps import make_app
from bench.cpu import cpu_seconds
from bench.places import BROKER, ENV, RESULTS, Places
from bench.variants import KINDS, Variant
from celery_guard.testing.processes import WorkerProcess

_ROOT = Path(__file__).resolve().parents[1]
_POLL = 0.005
_PATIENCE = 180.0

Say = Callable[[str], None]


class DoesNotRunError(Exception):
    """A variant does not do its work; the message says why."""


@dataclass(kw_only=True)
class Series:
    """Measurements of one variant and kind of body, a value a round."""

    #: tasks per second through the worker
    rates: list[float | None] = field(default_factory=list)
    #: tasks per second published
    published: list[float | None] = field(default_factory=list)
    #: µs of CPU time per task: the worker with its pool, and the one Valkey (broker, results, Redis store)
    worker_cpu: list[float | None] = field(default_factory=list)
    server_cpu: list[float | None] = field(default_factory=list)

    def miss(self) -> None:
        """Note a round without a measurement."""
        for values in (self.rates, self.published, self.worker_cpu, self.server_cpu):
            values.append(None)


@dataclass(kw_only=True)
class Throughput:
    """All measurements, and the variants that do not run with the reason."""

    series: dict[str, dict[str, Series]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


class _Line:
    """A family's application here, and its worker."""

    def __init__(self, family: str, places: Places, variants: Sequence[Variant]) -> None:
        self.app, self.broken = make_app(family, places, variants)
        self.worker = WorkerProcess(
            app="bench.worker_app",
            node=f"bench-{family}",
            concurrency=2,
            queues=[f"bench-{family}"],
            env={ENV: places.dumps(), "CELERY_GUARD_BENCH_FAMILY": family},
            cwd=_ROOT,
            log_level="WARNING",  # Celery's default; a line or two a task would be most of the work
        )

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let the worker go on for the block."""
        self.worker.sigcont_group()
        try:
            yield
        finally:
            self.worker.sigstop_group()

    def cpu(self) -> float | None:
        return cpu_seconds([self.worker.pid, *self.worker.child_pids()])


class Bench:
    """Servers and workers of one run."""

    def __init__(self, places: Places, variants: Sequence[Variant], stack: ExitStack) -> None:
        self._places = places
        self._broker = redis.Redis.from_url(places.url(BROKER))
        self._results = redis.Redis.from_url(places.url(RESULTS))
        self._lines: dict[str, _Line] = {}
        self.broken: dict[str, str] = {}
        for family in dict.fromkeys(variant.family for variant in variants):
            line = self._lines[family] = _Line(family, places, variants)
            self.broken |= line.broken
            line.worker.start()
            stack.callback(line.worker.close)

    def warm_up(self, variant: Variant, count: int) -> None:
        """Run some tasks of each kind. Raises :class:`DoesNotRunError`."""
        for kind in KINDS:
            self.measure(variant, kind, count, Series())

    def measure(self, variant: Variant, kind: str, count: int, series: Series) -> None:
        """Measure once. Raises :class:`DoesNotRunError`."""
        line = self._lines[variant.family]
        task = line.app.tasks[variant.task_name(kind)]
        seconds = self._publish(task, variant.queue, count)
        worker_before, server_before = line.cpu(), self._server_cpu()
        with line.awake():
            started = time.perf_counter()
            ended = self._wait_drained(line.worker, variant.queue)
            worker_after, server_after = line.cpu(), self._server_cpu()
        self._see_that_all_ran(count)
        series.rates.append(count / (ended - started))
        series.published.append(count / seconds)
        known = worker_before is not None and worker_after is not None
        spent = worker_after - worker_before if known else None  # type: ignore[operator]
        series.worker_cpu.append(None if spent is None else spent / count * 1e6)
        series.server_cpu.append((server_after - server_before) / count * 1e6)

    def _publish(self, task: Any, queue: str, count: int) -> float:
        try:
            started = time.perf_counter()
            for n in range(count):
                task.apply_async(args=(n,), queue=queue)
            return time.perf_counter() - started
        except Exception as exc:
            self._broker.delete(queue)
            raise DoesNotRunError(f"publishing fails: {type(exc).__name__}: {exc}") from exc

    def _wait_drained(self, worker: WorkerProcess, queue: str) -> float:
        """Return when the last task was acknowledged."""
        deadline = time.monotonic() + _PATIENCE
        empty_at: float | None = None
        while True:
            seen_at = time.perf_counter()
            with self._broker.pipeline(transaction=True) as pipe:
                pipe.llen(queue)
                pipe.hlen("unacked")
                waiting, unacked = pipe.execute()
            if waiting or unacked:
                empty_at = None
            elif empty_at is not None:  # twice: on its way to the worker a message is in neither for a moment
                return empty_at
            else:
                empty_at = seen_at
            if not worker.running:
                raise DoesNotRunError(f"its worker ended:\n{worker.log_tail(15)}")
            if time.monotonic() > deadline:
                self._broker.delete(queue)
                raise DoesNotRunError(f"{waiting + unacked} tasks left after {_PATIENCE:.0f} s")
            time.sleep(_POLL)

    def _see_that_all_ran(self, count: int) -> None:
        if not self._places.results:
            return
        keys = list(self._results.scan_iter("celery-task-meta-*", count=1000))
        found = [json.loads(text) for text in self._results.mget(keys) if text] if keys else []
        self._results.flushdb()
        ran = sum(item["status"] == "SUCCESS" and isinstance(item["result"], int) for item in found)
        if ran != count:
            other = next((item for item in found if not isinstance(item["result"], int)), "no result")
            raise DoesNotRunError(f"{ran} of {count} bodies ran; another gave {str(other)[:200]}")

    def _server_cpu(self) -> float:
        info = self._broker.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def pause_all(self) -> None:
        """Stop every worker."""
        for line in self._lines.values():
            line.worker.sigstop_group()


def run(
    places: Places, variants: Sequence[Variant], *, rounds: int, tasks: dict[str, int], say: Say
) -> Throughput:
    """Measure all variants and return what was found."""
    found = Throughput()
    runnable = []
    for variant in variants:
        if variant.family in places.missing:
            found.broken[variant.name] = f"skipped: {places.missing[variant.family]}"
        else:
            runnable.append(variant)
    # Counted before and not after: publishing from here is part of what is measured.
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    with ExitStack() as stack:
        bench = Bench(places, runnable, stack)
        found.broken |= {name: f"does not run: {why}" for name, why in bench.broken.items()}
        running = [variant for variant in runnable if variant.name not in found.broken]
        for variant in running:
            say(f"warming up {variant.name}")
            _try(found, variant, lambda variant=variant: bench.warm_up(variant, 40))  # type: ignore[misc]
        bench.pause_all()
        for number in range(rounds):
            for kind, count in tasks.items():
                for variant in _order(running, number):
                    _one(found, bench, variant, kind, count, number, say)
    return found


def _order(variants: Sequence[Variant], number: int) -> list[Variant]:
    """Return the variants in the order of a round: turned, and every other time backwards."""
    shift = number * 3 % max(len(variants), 1)
    turned = [*variants[shift:], *variants[:shift]]
    return turned[::-1] if number % 2 else turned


def _one(
    found: Throughput, bench: Bench, variant: Variant, kind: str, count: int, number: int, say: Say
) -> None:
    series = found.series.setdefault(kind, {}).setdefault(variant.name, Series())
    if variant.name in found.broken:
        series.miss()
        return
    if not _try(found, variant, lambda: bench.measure(variant, kind, count, series)):
        series.miss()
        return
    say(f"round {number + 1}, {kind}, {variant.name}: {series.rates[-1]:,.0f}/s")


def _try(found: Throughput, variant: Variant, work: Callable[[], None]) -> bool:
    try:
        work()
    except DoesNotRunError as exc:
        found.broken[variant.name] = f"does not run: {exc}"
        return False
    return True
