"""What a tick carries, and that no tick is lost: Celery's own scheduler on a clock of ours."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.schedules import crontab, schedule
from kombu import Producer

from celery_guard import Guard, GuardedTask, State
from celery_guard.worker.beat import label
from celery_guard.worker.publish import _tick
from celery_guard.worker.slots import to_ms
from celery_guard.worker.task import guarding

from .deliveries import Fleet
from .ticking import Beat, dues, header

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet(task_publish_retry=False)

    def work(*args: Any) -> None: ...

    made.app.task(base=GuardedTask, shared=False, name="t.work", guard=Guard(overlap="allow"))(work)
    return made


def jitters(seed: int) -> Iterator[float]:
    """A machine that mostly takes some ms, and now and then stands still for longer than an interval."""
    chance = random.Random(seed)
    while True:
        yield chance.uniform(0, 0.004) if chance.random() < 0.97 else chance.uniform(0.1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("length", [0.5, 2.0, 7.3])
def test_ten_thousand_ticks_with_drift_and_jitter_have_ten_thousand_due_times(
    fleet: Fleet, length: float
) -> None:
    noise = jitters(7)
    beat = Beat(fleet, {"tick": {"task": "t.work", "schedule": length}}, NEW_YEAR, lag=lambda: next(noise))
    apply_entry = beat.scheduler.apply_entry

    def after_a_pause(entry: Any, **kwargs: Any) -> None:
        # between reservation and publish: it brings two publishes nearer to each other than the interval
        beat.now += timedelta(seconds=next(noise))
        apply_entry(entry, **kwargs)

    beat.scheduler.apply_entry = after_a_pause
    sent: list[datetime] = []

    def publish(entry: Any, **kwargs: Any) -> None:
        tick = _tick.get()
        assert tick is not None
        sent.append(datetime.fromtimestamp(tick.due / 1000, UTC))

    beat.scheduler._celery_guard._apply = publish  # ten thousand messages would say nothing more
    ticks = 0
    while ticks < 10_000:
        before = beat.scheduler.schedule["tick"].total_run_count
        beat.step()
        ticks += beat.scheduler.schedule["tick"].total_run_count - before
    assert len(sent) == len(set(sent)) == 10_000
    assert sent == sorted(sent)


def test_two_beats_apart_by_any_skew_name_the_same_due_times(fleet: Fleet) -> None:
    end = NEW_YEAR + timedelta(minutes=10)
    named = []
    for skew in (0.0, 0.3, 1.9):
        beat = Beat(
            fleet,
            {
                "every": {"task": "t.work", "schedule": 2.0},
                "cron": {"task": "t.work", "schedule": crontab(minute="*/3")},
            },
            NEW_YEAR + timedelta(seconds=skew),
        )
        beat.run(end)
        messages = fleet.messages()
        named.append({(header(m)["entry"], due) for m, due in zip(messages, dues(messages), strict=True)})
    crons = [{due for entry, due in each if entry == "cron"} for each in named]
    assert crons[0] == crons[1] == crons[2] and len(crons[0]) == 3
    for entry, due in named[0] | named[1] | named[2]:
        if entry == "every":
            assert due.timestamp() % 2 == 0


def test_the_header_says_entry_due_time_and_source_and_the_execution_keeps_them(fleet: Fleet) -> None:
    beat = Beat(fleet, {"tick": {"task": "t.work", "schedule": 60.0}}, NEW_YEAR)
    beat.run(NEW_YEAR + timedelta(seconds=90))
    (message,) = fleet.messages()
    assert (header(message)["src"], header(message)["entry"]) == ("beat", "tick")
    fleet.deliver(message)
    (execution,) = fleet.store.executions()
    assert execution.entry == "tick" and execution.source == "beat"
    assert execution.scheduled_at == int((NEW_YEAR + timedelta(minutes=1)).timestamp() * 1000)
    assert execution.key == f"t.work@tick:{execution.scheduled_at}"


def test_a_task_that_only_its_worker_knows_gets_its_due_time_and_a_plain_one_stays_plain(
    fleet: Fleet,
) -> None:
    def plain() -> str:
        return "plain"

    def elsewhere() -> None: ...

    beat = Beat(
        fleet,
        {name: {"task": f"t.{name}", "schedule": 60.0} for name in ("elsewhere", "plain")},
        NEW_YEAR,
    )
    beat.run(NEW_YEAR + timedelta(seconds=90))
    messages = {m.headers["task"]: m for m in fleet.messages()}
    fleet.app.task(base=GuardedTask, shared=False, name="t.elsewhere")(elsewhere)
    guarding(fleet.app.task(shared=False, name="t.plain")(plain))
    assert header(messages["t.elsewhere"])["due"] == header(messages["t.plain"])["due"]
    assert fleet.deliver(messages["t.plain"]).retval == "plain"
    assert list(fleet.store.executions()) == []
    fleet.deliver(messages["t.elsewhere"])
    (execution,) = fleet.store.executions()
    assert execution.entry == "elsewhere" and execution.state is State.SUCCEEDED


def test_a_hostile_entry_is_named_and_the_others_go_on(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    entries: dict[str, Any] = {"good": {"task": "t.work", "schedule": 60.0}}
    hostile: list[Any] = [
        {"guard": {"misfire": "onec"}},
        {"guard": 5},
        {"guard": {"within": "soon"}},
        {"headers": {"guard": "{"}},
        {"headers": {"guard": {"v": 9}}},
    ]
    for number, options in enumerate(hostile):
        entries[f"bad{number}"] = {"task": "t.work", "schedule": 60.0, "options": options}
    beat = Beat(fleet, entries, NEW_YEAR)
    beat.run(NEW_YEAR + timedelta(seconds=150))
    assert [header(m)["entry"] for m in fleet.messages()] == ["good", "good"]
    for number in range(len(hostile)):
        assert f"beat entry 'bad{number}' is not sent, mend its options" in caplog.text
    assert len(beat.scheduler._celery_guard.unsent) == 0


def test_names_that_no_message_can_carry_stay_apart() -> None:
    long = "x" * 150
    assert label("tick") == "tick" and label(long) == long
    names = ["a\nb", "a\tb", long + "1", long + "2", ""]
    labels = [label(name) for name in names]
    assert len(set(labels)) == len(names)
    assert all(text.isprintable() and 0 < len(text) <= 150 for text in labels)


# --- the broker is away ---------------------------------------------------------------------------------


class Broker:
    """Stands before kombu's publish: away, or there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away = False
        publish = Producer.publish

        def maybe(producer: Any, *args: Any, **kwargs: Any) -> Any:
            if self.away:
                raise ConnectionRefusedError("the broker is away")
            return publish(producer, *args, **kwargs)

        monkeypatch.setattr(Producer, "publish", maybe)


def test_a_tick_that_could_not_be_published_is_sent_again_with_its_due_time(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(monkeypatch)
    beat = Beat(
        fleet,
        {
            "daily": {"task": "t.work", "schedule": crontab(minute=0, hour=2)},
            "every": {"task": "t.work", "schedule": 20.0},
        },
        NEW_YEAR + timedelta(hours=1, minutes=59, seconds=50),
    )
    unsent = beat.scheduler._celery_guard.unsent
    unsent._clock = lambda: to_ms(beat.now) / 1000
    broker.away = True
    beat.run(NEW_YEAR + timedelta(hours=2, seconds=45))
    assert len(unsent) == 3  # the daily one, and two of the other
    broker.away = False
    beat.run(NEW_YEAR + timedelta(hours=2, seconds=95))
    messages = fleet.messages()
    named = zip(messages, dues(messages), strict=True)
    got = sorted((header(m)["entry"], due.second + 60 * due.minute) for m, due in named)
    assert got == [("daily", 0), *(("every", second) for second in (0, 20, 40, 60, 80))]
    assert {due.hour for due in dues(messages)} == {2}
    assert len(unsent) == 0


def test_what_no_broker_would_take_is_not_tried_for_ever(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    beat = Beat(
        fleet,
        {"odd": {"task": "t.work", "schedule": 60.0, "args": [object()]}},
        NEW_YEAR,
    )
    beat.run(NEW_YEAR + timedelta(seconds=70))
    assert len(beat.scheduler._celery_guard.unsent) == 0
    assert "beat entry 'odd': its due time 2026-01-01T00:01:00+00:00 is not sent" in caplog.text


def test_kept_due_times_are_bounded(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    from celery_guard.worker.unsent import Unsent

    unsent = Unsent(lambda *args: None, most=3)
    entry = type("Entry", (), {"name": "tick"})()
    for due in range(5):
        unsent.keep(entry, None, due * 1000, OSError("away"))
    assert [kept.due for kept in unsent._kept.values()] == [2000, 3000, 4000]
    assert "beat entry 'tick': its due time 1970-01-01T00:00:00+00:00 is given up" in caplog.text


def test_a_beat_that_ends_while_the_broker_is_away_leaves_the_due_time_to_the_next(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(monkeypatch)
    entry = {"task": "t.work", "schedule": crontab(minute=0, hour=2)}
    beat = Beat(fleet, {"daily": dict(entry)}, NEW_YEAR + timedelta(hours=1, minutes=59))
    broker.away = True
    beat.run(NEW_YEAR + timedelta(hours=2, seconds=30))
    beat.scheduler.close()
    remembered = beat.scheduler.schedule["daily"].last_run_at
    assert remembered == NEW_YEAR + timedelta(hours=1, minutes=59)
    broker.away = False
    again = Beat(fleet, {"daily": dict(entry)}, NEW_YEAR + timedelta(hours=2, minutes=3), last=remembered)
    again.step()
    assert dues(fleet.messages()) == [NEW_YEAR + timedelta(hours=2)]


def test_intervals_that_celery_rounds_lose_no_tick(fleet: Fleet) -> None:
    """``relative``: an interval of 90 minutes ticks every hour."""
    for length in (1.5, 2, 90, 5400, 86_400):
        every = schedule(timedelta(seconds=length), relative=True)
        beat = Beat(fleet, {"tick": {"task": "t.work", "schedule": every}}, NEW_YEAR + timedelta(seconds=0.9))
        while beat.scheduler.schedule["tick"].total_run_count < 30:
            beat.step()
        named = dues(fleet.messages())
        assert len(named) == len(set(named)) == 30, length
