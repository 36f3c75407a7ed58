"""What was found, as tables for people and as data for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.report import ends, middle, number, quartiles, table
from bench.stats import Spread, ratios
from bench.stored import FEW, Stored
from bench.throughput import Series, Throughput
from bench.variants import AGAIN, BASE
from bench.waiting import Drain

#: The aims of the project, by the start of a variant's name.
AIMS = {"guard redis allow": 0.95, "guard postgres allow": 0.70}
#: How much slower with much stored is still not slower.
AIM_STORED = 1.2


def _spread(values: list[float | None]) -> Spread | None:
    return Spread.of(value for value in values if value is not None)


def throughput_text(found: Throughput) -> str:
    """Return a table for each kind of body."""
    parts = [_kind_text(kind, series, found.broken) for kind, series in found.series.items()]
    parts.append(
        f"Ratio: tasks per second by those of {BASE!r} in the same round; {AGAIN!r} is the same task once "
        "more, so its spread is chance.\nCPU: µs per task of the worker with its pool, and of the one Valkey "
        "(broker, results, Redis store, peers' locks).\nPublished: celery-singleton and celery-once take "
        "their lock there."
    )
    return "\n\n".join(parts)


def _kind_text(kind: str, series: Mapping[str, Series], broken: Mapping[str, str]) -> str:
    base = series.get(BASE, Series())
    rows = []
    for name, this in series.items():
        ratio = ratios(this.rates, base.rates)
        if ratio is None:
            continue
        aim = AIMS.get(name)
        rows.append(
            [
                name,
                middle(_spread(this.rates)),
                middle(ratio, 3),
                quartiles(ratio),
                ends(ratio),
                f">= {aim:.2f}" if aim else "",
                middle(_spread(this.worker_cpu)),
                middle(ratios(this.worker_cpu, base.worker_cpu), 2),
                middle(_spread(this.server_cpu)),
                middle(_spread(this.published)),
            ]
        )
    head = ["task " + kind, "tasks/s", "ratio", "quartiles", "min-max", "aim"]
    head += ["CPU worker", "ratio", "Valkey", "published/s"]
    lines = [table(head, rows)]
    lines += [f"{name}: {reason}" for name, reason in broken.items()]
    return "\n".join(lines)


def throughput_data(found: Throughput) -> dict[str, Any]:
    """Return everything, each value of each round too."""
    data: dict[str, Any] = {"does_not_run": found.broken, "kinds": {}}
    for kind, series in found.series.items():
        base = series.get(BASE, Series())
        data["kinds"][kind] = {
            name: {
                "tasks_per_second": this.rates,
                "ratio": _data(ratios(this.rates, base.rates)),
                "published_per_second": this.published,
                "worker_cpu_us": this.worker_cpu,
                "worker_cpu_ratio": _data(ratios(this.worker_cpu, base.worker_cpu)),
                "server_cpu_us": this.server_cpu,
            }
            for name, this in series.items()
        }
    return data


def stored_text(found: Stored) -> str:
    """Return one table for all stores."""
    rows = []
    for store, timings in found.timings.items():
        few, many = timings[FEW], timings[found.count]
        for operation in few:
            ratio = ratios(many[operation].medians, few[operation].medians)
            rows.append(
                [
                    f"{store}: {operation}",
                    middle(Spread.of(few[operation].medians), 3),
                    middle(Spread.of(many[operation].medians), 3),
                    middle(ratio, 3),
                    quartiles(ratio),
                    ends(ratio),
                    f"<= {AIM_STORED}" if operation == "begin + finish" else "",
                    number(max(many[operation].tails), 2),
                ]
            )
    head = ["ms, median call", f"{FEW:,} stored", f"{found.count:,} stored", "ratio", "quartiles", "min-max"]
    lines = [table([*head, "aim", "worst p99"], rows)]
    lines += [f"{name}: {reason}" for name, reason in found.broken.items()]
    return "\n".join(lines)


def stored_data(found: Stored) -> dict[str, Any]:
    """Return everything, each round too."""
    data: dict[str, Any] = {"few": FEW, "many": found.count, "skipped": found.broken, "stores": {}}
    for store, timings in found.timings.items():
        few, many = timings[FEW], timings[found.count]
        data["stores"][store] = {
            operation: {
                "few_ms": few[operation].medians,
                "many_ms": many[operation].medians,
                "few_p99_ms": few[operation].tails,
                "many_p99_ms": many[operation].tails,
                "ratio": _data(ratios(many[operation].medians, few[operation].medians)),
            }
            for operation in few
        }
    return data


def waiting_text(found: Mapping[int, Drain]) -> str:
    """Return one table: a row for each length of the queue."""
    rows = [
        [f"{size:,}", *(middle(Spread.of(values), 1) for values in (drain.rates, drain.medians, drain.tails))]
        for size, drain in found.items()
    ]
    return table(["waiting", "executions/s", "ms to the next start", "p99"], rows)


def waiting_data(found: Mapping[int, Drain]) -> dict[str, Any]:
    """Return everything, each round too."""
    return {
        str(size): {"per_second": drain.rates, "gap_ms": drain.medians, "gap_p99_ms": drain.tails}
        for size, drain in found.items()
    }


def _data(spread: Spread | None) -> dict[str, float] | None:
    return spread.data() if spread else None
