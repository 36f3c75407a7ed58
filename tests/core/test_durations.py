"""Durations: ``timedelta``, seconds, or text; anything else is an error that shows how to write one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_guard.core.durations import seconds


@pytest.mark.parametrize(
    ("written", "length"),
    [
        (90, 90.0),
        (0, 0.0),
        (1.5, 1.5),
        (timedelta(hours=26), 93600.0),
        ("90s", 90.0),
        ("15m", 900.0),
        ("26h", 93600.0),
        ("7d", 604800.0),
        ("2w", 1209600.0),
        ("250ms", 0.25),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (" 1H 30M ", 5400.0),
        ("5m5ms", 300.005),
        (10 * 366 * 86400, 10 * 366 * 86400.0),
    ],
    ids=repr,
)
def test_a_duration(written: Any, length: float) -> None:
    assert seconds(written) == pytest.approx(length)
    assert type(seconds(written)) is float


@pytest.mark.parametrize(
    "written",
    [
        *("", "90", "s", "soon", "-5s", "1h-30m", "5y", "1e3s", "1,5h", "∞", "600w", b"5s"),
        *(-1, -0.5, float("nan"), float("inf"), float("-inf"), 10**400, 10 * 366 * 86400 + 1, 1j),
        *(True, False, None, [], timedelta(seconds=-1), timedelta.max),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_duration_says_so(written: Any) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(written)
