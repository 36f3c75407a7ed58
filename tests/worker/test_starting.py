"""By when an attempt has to start, and that every option of a task reaches the trigger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_guard import Guard, GuardedTask, State
from celery_guard.worker.header import Header, read
from celery_guard.worker.identity import identify
from celery_guard.worker.starting import moment, of_options, start_by

from .deliveries import Fleet


def test_every_option_reaches_the_trigger_in_ms() -> None:
    fleet = Fleet()

    def work() -> None: ...

    task = fleet.app.task(base=GuardedTask, shared=False, name="t.work")(work)
    common: dict[str, Any] = {
        "header": Header(entry="nightly", due=5_000, published_at=7_000),
        "task_id": "a",
        "args": (),
        "kwargs": {},
    }
    guard = Guard(
        overlap="coalesce",
        slots=3,
        throttle="2s",
        throttle_failures=True,
        debounce="1s",
        max_delay="9s",
        arguments="oldest",
        max_waiting_age="30s",
        start_within="4s",
    )
    trigger = identify(fleet.app, task, "t.work", guard=guard, expires=8_000, **common)
    assert (trigger.entry, trigger.slots, trigger.throttle, trigger.throttle_failures) == (
        "nightly",
        3,
        2_000,
        True,
    )
    assert (trigger.debounce, trigger.max_delay, trigger.oldest, trigger.max_waiting_age) == (
        1_000,
        9_000,
        True,
        30_000,
    )
    assert trigger.start_by == 8_000
    plain = identify(fleet.app, task, "t.work", guard=Guard(), **common)
    assert (plain.slots, plain.start_by, plain.oldest, plain.debounce) == (1, None, False, None)


@pytest.mark.parametrize(
    ("header", "eta", "expires", "expected"),
    [
        (Header(due=1_000, published_at=9_000), 5_000, None, 11_000),
        (Header(published_at=9_000), 20_000, None, 30_000),
        (Header(published_at=9_000), None, None, 19_000),
        (Header(published_at=9_000), None, 12_000, 12_000),
        (Header(published_at=9_000), None, 40_000, 19_000),
        (Header(), None, None, None),
        # put off while the store was down: the guard's own eta moves nothing
        (Header(published_at=9_000, deferrals=2), 90_000, None, 19_000),
        (Header(published_at=9_000, deferrals=2, eta=20_000), 90_000, None, 30_000),
    ],
)
def test_the_earliest_limit_counts(
    header: Header, eta: int | None, expires: int | None, expected: int | None
) -> None:
    assert start_by(Guard(start_within="10s"), header, eta=eta, expires=expires) == expected


def test_times_of_messages_and_of_publishes() -> None:
    when = datetime(2026, 1, 1, 12, tzinfo=UTC)
    ms = int(when.timestamp() * 1000)
    assert moment(when) == moment(when.isoformat()) == moment(when.replace(tzinfo=None)) == ms
    assert moment("soon") is None and moment(None) is None
    assert of_options({"countdown": 2, "expires": 3.5}, 1_000) == {"eta": 3_000, "expires": 4_500}
    assert of_options({"eta": when, "expires": when + timedelta(seconds=1)}, 1_000) == {
        "eta": ms,
        "expires": ms + 1_000,
    }
    assert read(Header(eta=5).data(), "here").eta == 5


def test_a_message_that_comes_too_late_expires_and_runs_nothing() -> None:
    """The store's clock is in 2030: whatever was published today is late."""
    fleet = Fleet()
    ran = []

    def work() -> None:
        ran.append(1)

    task = fleet.app.task(base=GuardedTask, shared=False, name="t.work")(work)
    task.apply_async(guard={"start_within": "1h"})
    task.apply_async(expires=3600)
    fleet.work()
    assert ran == []
    assert fleet.store.counts() == {("t.work", State.EXPIRED): 2}
