"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from bench import output, stored, throughput, waiting
from bench.places import serving
from bench.report import heading, machine
from bench.variants import AGAIN, BASE, VARIANTS, Variant

PARTS = ("throughput", "stored", "waiting")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Guarded tasks beside plain Celery and its peers. Everything runs on servers of its own.",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each part (default: 5)")
    parser.add_argument(
        "--tasks",
        type=int,
        default=2000,
        help="no-op tasks a measurement; of 5 ms 0.3 as many (default: 2000)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="only what has this word in its name: a part ({}) or a variant ({}); may be repeated".format(
            ", ".join(PARTS), ", ".join(variant.name for variant in VARIANTS)
        ),
    )
    parser.add_argument(
        "--stored",
        type=int,
        default=100_000,
        help="finished executions to compare 1,000 with (default: 100000)",
    )
    parser.add_argument("--calls", type=int, default=300, help="begin + finish a round (default: 300)")
    parser.add_argument("--full", action="store_true", help="--stored 1000000 and at least 10 rounds")
    parser.add_argument(
        "--no-results", action="store_true", help="ignore results (default: they go to Valkey)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    given = parser.parse_args(argv)
    if given.full:
        given.stored, given.rounds = max(given.stored, 1_000_000), max(given.rounds, 10)
    if min(given.rounds, given.tasks, given.calls) < 1 or given.stored <= stored.FEW:
        parser.error(f"--rounds, --tasks and --calls are at least 1, --stored more than {stored.FEW}")
    given.parts, given.variants = _chosen(given.only)
    if not given.parts:
        parser.error(f"--only {' --only '.join(given.only)} leaves nothing")
    return given


def _chosen(words: Sequence[str]) -> tuple[list[str], list[Variant]]:
    """Return the parts and the variants to measure: what plain Celery does is always asked too."""
    parts = [part for part in PARTS if any(word == part for word in words)]
    of_variants = [word for word in words if word not in PARTS]
    chosen = [variant for variant in VARIANTS if any(word in variant.name for word in of_variants)]
    if not of_variants:
        return parts or list(PARTS), list(VARIANTS)
    kept = [variant for variant in VARIANTS if variant in chosen or variant.name in (BASE, AGAIN)]
    if chosen and "throughput" not in parts:
        parts.insert(0, "throughput")
    return parts, kept


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    given = arguments(argv)
    logging.basicConfig(level=logging.ERROR)

    def say(text: str) -> None:
        if not given.quiet:
            print(text, file=sys.stderr, flush=True)

    facts = machine()
    text, data = [heading(facts)], {"machine": facts}
    families = {variant.family for variant in given.variants}
    postgres = "stored" in given.parts or "postgres" in families
    with serving(results=not given.no_results, postgres=postgres) as places:
        if "throughput" in given.parts:
            tasks = {"no-op": given.tasks, "5 ms": max(given.tasks * 3 // 10, 1)}
            run = throughput.run(places, given.variants, rounds=given.rounds, tasks=tasks, say=say)
            results = "ignored" if given.no_results else "in Valkey"
            text.append(f"Throughput: prefork 2, {given.rounds} rounds, {_text(tasks)}, results {results}")
            text.append(output.throughput_text(run))
            data["throughput"] = {
                "tasks": tasks,
                "results": not given.no_results,
                **output.throughput_data(run),
            }
        if "stored" in given.parts:
            latencies = stored.run(
                places, count=given.stored, rounds=given.rounds, calls=given.calls, say=say
            )
            text.append(f"Latency by what is stored: {given.rounds} rounds of {given.calls} calls, in turns")
            text.append(output.stored_text(latencies))
            data["stored"] = output.stored_data(latencies)
        if "waiting" in given.parts:
            drains = waiting.run(places, rounds=min(given.rounds, 3), say=say)
            text.append("Draining a queue behind one lock: prefork 2, Redis store, no-op bodies")
            text.append(output.waiting_text(drains))
            data["waiting"] = output.waiting_data(drains)
    facts["load_at_the_end"] = machine()["load"]
    print(json.dumps(data, indent=2) if given.json else "\n\n".join(text))
    return 0


def _text(tasks: dict[str, int]) -> str:
    counts: Any = (f"{count:,} of {kind}" for kind, count in tasks.items())
    return ", ".join(counts)


if __name__ == "__main__":
    sys.exit(main())
