"""Durations as users write them: ``timedelta``, seconds, or ``"90s"``, ``"15m"``, ``"26h"``, ``"7d"``."""

from __future__ import annotations

import math
import re
from datetime import timedelta

Duration = timedelta | float | int | str

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LONGEST = 10 * 366 * 86400
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")


def seconds(value: Duration) -> float:
    """Return the length in seconds.

    Raises :class:`ValueError` for anything else than a non-negative, finite duration; ``"1h30m"`` is one.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a duration")
    if isinstance(value, timedelta):
        length = value.total_seconds()
    elif isinstance(value, int | float):
        length = float(value) if abs(value) <= _LONGEST else math.inf
    elif isinstance(value, str):
        text = value.strip().lower().replace(" ", "")
        if not _WHOLE.fullmatch(text):
            raise ValueError(
                f"{value!r} is not a duration: write a timedelta, seconds, or text like '90s', '15m', '26h'"
            )
        length = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    else:
        raise ValueError(f"{value!r} is not a duration: write a timedelta, seconds, or text such as '90s'")
    if not math.isfinite(length) or length < 0 or length > _LONGEST:
        raise ValueError(f"{value!r} is not a duration between 0 and ten years")
    return length
