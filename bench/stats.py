"""Numbers over rounds: the median with its spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The median of some values, its quartiles and its ends."""

    median: float
    q1: float
    q3: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Return the spread of ``values``, None where there are none."""
        found = sorted(values)
        if not found:
            return None
        q1, median, q3 = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
        return cls(median=median, q1=q1, q3=q3, low=found[0], high=found[-1], rounds=len(found))

    def data(self) -> dict[str, float]:
        """Return it as JSON data."""
        return {name: round(value, 6) for name, value in asdict(self).items()}


def ratios(values: Sequence[float | None], base: Sequence[float | None]) -> Spread | None:
    """Return the spread of the ratios round by round: both values of a ratio met the same weather."""
    pairs = zip(values, base, strict=False)
    return Spread.of(one / other for one, other in pairs if one is not None and other)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the values do not exceed."""
    found = sorted(values)
    return found[min(int(len(found) * share), len(found) - 1)]
