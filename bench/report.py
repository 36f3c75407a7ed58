"""Text tables, their columns aligned."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.stats import Spread

_PACKAGES = (
    *("celery", "kombu", "redis", "django", "psycopg"),
    *("celery-singleton", "celery-once", "python-redis-lock"),
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "  ".join((cells[0].ljust(widths[0]), *rest)).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join((line(head), rule, *(line(row) for row in rows)))


def number(value: float | None, digits: int = 0) -> str:
    """Return a number, ``-`` where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def middle(spread: Spread | None, digits: int = 0) -> str:
    """Return the median."""
    return number(spread.median if spread else None, digits)


def ends(spread: Spread | None, digits: int = 2) -> str:
    """Return the lowest and the highest value."""
    return f"{spread.low:.{digits}f}-{spread.high:.{digits}f}" if spread else "-"


def quartiles(spread: Spread | None, digits: int = 2) -> str:
    """Return the quartiles: half of the rounds lie between them."""
    return f"{spread.q1:.{digits}f}-{spread.q3:.{digits}f}" if spread else "-"


def machine() -> dict[str, Any]:
    """Return what the numbers depend on: the machine, how busy it was, and the versions."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "cpus": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "packages": packages,
    }


def heading(facts: dict[str, Any]) -> str:
    """Return :func:`machine`'s facts as lines of text."""
    packages = ", ".join(f"{name} {found}" for name, found in facts["packages"].items())
    load = facts["load"][0]
    busy = (
        f"\nThe machine is busy (load {load} on {facts['cpus']} CPUs): believe ratios more than rates, "
        "and CPU time more than both."
    )
    return f"Python {facts['python']}, {facts['system']}, {facts['cpus']} CPUs, load {load}\n{packages}" + (
        busy if load > facts["cpus"] / 2 else ""
    )
