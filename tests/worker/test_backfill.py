"""Backfill and the schedule as data, from Python and from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.bin.celery import celery as command
from celery.schedules import crontab
from click.testing import CliRunner, Result

import celery_guard
from celery_guard import ConfigurationError, Guard, GuardedTask, State
from celery_guard.cli import guard
from celery_guard.worker import slots
from celery_guard.worker.backfill import Backfill, Item, backfill
from celery_guard.worker.schedules import schedules

from .deliveries import Fleet
from .ticking import Beat

DAY = datetime(2026, 3, 4, tzinfo=UTC)
ENTRY: dict[str, Any] = {"task": "t.settle", "schedule": crontab(minute=0), "args": [7]}


class Shop:
    """A fleet with one guarded task, whose body does what the test says."""

    def __init__(self, **guard: Any) -> None:
        self.fleet = Fleet(timezone="Europe/Paris", beat_schedule={"settle": dict(ENTRY)})
        self.fleet.clock.now = (DAY + timedelta(hours=20)).timestamp()
        self.ran: list[datetime] = []
        self.bad: set[datetime] = set()
        shop = self

        def settle(self: Any, tenant: int) -> None:
            due = self.guard.scheduled_at
            shop.ran.append(due)
            if due in shop.bad:
                raise ValueError("no")

        options = Guard(**{"overlap": "allow", **guard})
        self.task = self.fleet.app.task(
            bind=True, base=GuardedTask, shared=False, name="t.settle", guard=options
        )(settle)

    def backfill(self, hours: int = 4, **options: Any) -> Backfill:
        """While it waits, workers work."""
        options.setdefault("sleep", lambda seconds: self.fleet.work())
        return backfill(self.fleet.app, "settle", DAY, DAY + timedelta(hours=hours), **options)


def hours(*numbers: int) -> list[datetime]:
    return [DAY + timedelta(hours=number) for number in numbers]


def test_every_due_time_of_the_range_runs_once_as_its_own_execution() -> None:
    shop = Shop()
    done = shop.backfill()
    assert shop.ran == hours(0, 1, 2, 3)
    assert done.complete and done.count("succeeded") == 4
    for execution in shop.fleet.store.executions():
        assert (execution.source, execution.entry) == ("backfill", "settle")
        assert execution.key == f"t.settle@settle:{execution.scheduled_at}"
    assert shop.backfill().count("done before") == 4
    assert len(shop.ran) == 4


def test_a_backfill_and_beat_mean_the_same_execution() -> None:
    shop = Shop()
    beat = Beat(shop.fleet, {"settle": dict(ENTRY)}, DAY + timedelta(minutes=50))
    beat.run(DAY + timedelta(hours=2, minutes=1))
    first, second = shop.fleet.messages()
    shop.fleet.deliver(first)
    done = shop.backfill()
    assert [item.outcome for item in done.items] == ["succeeded", "done before", "succeeded", "succeeded"]
    shop.fleet.deliver(second)
    assert sorted(shop.ran) == hours(0, 1, 2, 3)


@pytest.mark.parametrize("ended", [State.FAILED, State.EXPIRED, State.REVOKED])
def test_what_ended_otherwise_is_sent_again(ended: State) -> None:
    shop = Shop()
    if ended is State.FAILED:
        shop.bad = set(hours(1))
        first = shop.backfill()
        assert not first.complete and [item.outcome for item in first.items][1] == "failed"
        assert "no" in first.items[1].reason
        shop.bad = set()
    else:
        from celery_guard.worker.header import Header
        from celery_guard.worker.identity import identify

        trigger = identify(
            shop.fleet.app,
            shop.task,
            "t.settle",
            guard=shop.task.guard_options,
            header=Header(source="beat", entry="settle", due=slots.to_ms(hours(1)[0])),
            task_id="x",
            args=(7,),
            kwargs={},
        )
        shop.fleet.store.end(trigger, state=ended, reason="why")
    again = shop.backfill()
    assert again.complete and again.items[1].outcome == "succeeded"
    assert shop.ran.count(hours(1)[0]) == (2 if ended is State.FAILED else 1)


def test_what_misfire_left_out_can_be_made_up_for() -> None:
    shop = Shop(misfire="skip")
    now = DAY + timedelta(hours=3, minutes=10)
    Beat(shop.fleet, {"settle": dict(ENTRY)}, now, last=DAY - timedelta(minutes=1), max_interval=5).step()
    assert shop.fleet.store.counts() == {("t.settle", State.EXPIRED): 4}
    assert shop.backfill().complete
    assert shop.ran == hours(0, 1, 2, 3)


def test_a_limit_from_the_due_time_does_not_end_what_is_late_on_purpose() -> None:
    shop = Shop(start_within="10m")
    shop.fleet.clock.now = datetime.now(UTC).timestamp()
    assert shop.backfill().complete
    assert len(shop.ran) == 4


def test_no_more_are_under_way_than_asked_for() -> None:
    shop = Shop()
    most = 0

    def sleep(seconds: float) -> None:
        nonlocal most
        messages = shop.fleet.messages()
        most = max(most, len(messages))
        for message in messages:
            shop.fleet.deliver(message)

    assert shop.backfill(hours=12, concurrency=3, sleep=sleep).complete
    assert most == 3


def test_a_running_one_is_waited_for_and_not_sent() -> None:
    shop = Shop()
    Beat(shop.fleet, {"settle": dict(ENTRY)}, DAY + timedelta(minutes=50)).run(
        DAY + timedelta(hours=1, minutes=1)
    )
    (message,) = shop.fleet.messages()
    trigger = shop.fleet.request(message)._trigger()
    lease = shop.fleet.store.begin(trigger, owner="d/1").answer.lease
    told: list[Item] = []

    def sleep(seconds: float) -> None:
        from celery_guard.core.contract import Finish

        shop.fleet.store.finish(Finish(lease=lease, state=State.SUCCEEDED, result="1"))
        shop.fleet.work()

    one = backfill(
        shop.fleet.app,
        "settle",
        hours(1)[0],
        hours(2)[0],
        sleep=sleep,
        on_progress=told.append,
    )
    assert one.complete and shop.ran == []
    assert [item.outcome for item in told] == ["waiting", "succeeded"]


def test_a_backfill_that_was_stopped_goes_on() -> None:
    shop = Shop()
    rounds = iter(range(100))

    def stopped(seconds: float) -> None:
        if next(rounds) == 2:
            raise KeyboardInterrupt
        shop.fleet.work()

    with pytest.raises(KeyboardInterrupt):
        shop.backfill(sleep=stopped)
    assert len(shop.ran) == 2
    done = shop.backfill()
    assert done.complete and shop.ran == hours(0, 1, 2, 3)


def test_a_dry_run_says_what_would_happen_and_sends_nothing() -> None:
    shop = Shop()
    shop.backfill(hours=2)
    looked = shop.backfill(hours=4, dry_run=True)
    assert [item.outcome for item in looked.items] == ["done before"] * 2 + ["would run"] * 2
    assert shop.fleet.messages() == [] and len(shop.ran) == 2


def test_a_key_of_ones_own_that_names_no_due_time_ends() -> None:
    shop = Shop(key="{tenant}", unique_for="1h")
    done = shop.backfill()
    assert done.complete and len(shop.ran) == 1


def test_local_times_and_the_end_excluded() -> None:
    shop = Shop()
    naive = datetime(2026, 3, 4)  # noqa: DTZ001 - midnight in Paris
    looked = backfill(shop.fleet.app, "settle", naive, naive + timedelta(hours=2), dry_run=True)
    midnight = naive.replace(tzinfo=ZoneInfo("Europe/Paris"))
    assert [slots.to_moment(item.due) for item in looked.items] == [midnight, midnight + timedelta(hours=1)]
    future = datetime.now(UTC) + timedelta(days=400)
    assert backfill(shop.fleet.app, "settle", future, future + timedelta(days=1), dry_run=True).items == ()


def test_mistakes_say_what_and_how_to_mend() -> None:
    shop = Shop()

    def refuse(
        words: str, name: str = "settle", end: datetime = DAY + timedelta(hours=1), **options: Any
    ) -> None:
        with pytest.raises(ConfigurationError, match=words):
            backfill(shop.fleet.app, name, DAY, end, **options)

    refuse("did you mean 'settle'", name="setle")
    refuse("has no time in it", end=DAY)
    refuse("concurrency=0", concurrency=0)
    refuse("not imported here", entries={"settle": {"task": "t.nowhere", "schedule": 60.0}})
    refuse("more than 100,000", entries={"settle": {**ENTRY, "schedule": 0.01}})
    refuse("cannot be read", entries={"settle": {"taks": "x"}})

    def plain() -> None: ...

    shop.fleet.app.task(name="t.plain", shared=False)(plain)
    refuse("is not guarded", entries={"settle": {"task": "t.plain", "schedule": 60.0}})
    assert celery_guard.backfill is backfill


# --- the schedule as data -------------------------------------------------------------------------------


def test_the_schedule_as_data() -> None:
    shop = Shop()
    shop.bad = set(hours(3))
    shop.backfill(hours=4)
    now = DAY + timedelta(hours=3, minutes=30)
    never = {"task": "t.settle", "schedule": crontab(minute=15)}
    never_one, one = schedules(
        shop.fleet.app, entries={"settle": dict(ENTRY), "never": never}, now=now, recent=3
    )
    ms = [slots.to_ms(at) for at in hours(0, 1, 2, 3, 4)]
    assert (one.entry, one.task, one.last_due, one.next_due) == ("settle", "t.settle", ms[3], ms[4])
    assert one.last_state is State.FAILED and "no" in one.last_reason
    assert one.last_success_due == ms[2] and one.last_success_at == int(shop.fleet.clock() * 1000)
    assert [(due, state) for due, state, _ in one.recent] == [
        (ms[3], State.FAILED),
        (ms[2], State.SUCCEEDED),
        (ms[1], State.SUCCEEDED),
    ]
    assert never_one.last_due == ms[3] + 15 * 60_000
    assert (never_one.last_state, never_one.last_success_at, never_one.recent) == (None, None, ())


# --- the command ----------------------------------------------------------------------------------------


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    shop = Shop()
    monkeypatch.setitem(backfill.__kwdefaults__ or {}, "sleep", lambda seconds: shop.fleet.work())

    def run(*args: str, bad: bool = False) -> Result:
        shop.bad = set(hours(1)) if bad else set()
        context = type("Context", (), {"app": shop.fleet.app})()
        return CliRunner().invoke(guard, list(args), obj=context)

    return run


RANGE = ("--from", "2026-03-04T01:00", "--to", "2026-03-04T05:00+01:00")  # Paris: 0 to 4 UTC


def test_the_command_runs_a_range_and_fails_when_one_fails(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = cli("backfill", "settle", *RANGE, "--dry-run")
    assert looked.exit_code == 0, looked.output
    assert looked.output.count("  would run\n") == 4
    assert "2026-03-04T01:00:00+01:00  would run" in looked.output
    failed = cli("backfill", "settle", *RANGE, bad=True)
    assert failed.exit_code == 1
    assert "2026-03-04T02:00:00+01:00  failed  (failed: ValueError: no)" in failed.output
    assert "settle: 4 due times, 3 succeeded, 1 failed" in failed.output
    done = cli("backfill", "settle", *RANGE, "--json", "--concurrency", "2")
    assert done.exit_code == 0
    lines = [json.loads(line) for line in done.output.splitlines()]
    assert sorted(line["outcome"] for line in lines) == ["done before"] * 3 + ["succeeded"]


def test_the_commands_errors(cli: Callable[..., Result]) -> None:
    nearest = cli("backfill", "setle", *RANGE)
    assert nearest.exit_code == 1 and "did you mean 'settle'?" in nearest.output
    when = cli("backfill", "settle", "--from", "soon", "--to", "2026-03-04")
    assert when.exit_code == 2 and "'soon' is not a date or time such as" in when.output
    which = cli("backfill", "settle", *RANGE, "-S", "no.such:Scheduler")
    assert which.exit_code == 1 and "no beat scheduler 'no.such:Scheduler' can be imported" in which.output
    assert "Ctrl-C" in cli("backfill", "--help").output


def test_the_command_shows_the_schedule(cli: Callable[..., Result]) -> None:
    cli("backfill", "settle", *RANGE)
    text = cli("schedules")
    assert text.exit_code == 0, text.output
    assert "settle: t.settle, crontab: 0 *" in text.output
    assert "for 2026-03-04T04:00:00+01:00" in text.output
    (one,) = [json.loads(line) for line in cli("schedules", "--json", "--recent", "2").output.splitlines()]
    assert len(one["recent"]) == 2 and one["last_success_due"] == slots.to_ms(hours(3)[0])
    assert command.commands.get("guard") in (None, guard)
