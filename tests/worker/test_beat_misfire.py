"""Due times that passed while beat was down or an entry was off: what runs, what does not, and where that shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.schedules import crontab

from celery_guard import Guard, GuardedTask, State
from celery_guard.core.errors import StoreUnavailableError
from celery_guard.worker import misfire

from .deliveries import Fleet
from .ticking import Beat, dues, header

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet()
    made.clock.now = NOON.timestamp()

    def work(tenant: int = 1) -> None: ...

    made.app.task(base=GuardedTask, shared=False, name="t.work", guard=Guard(overlap="allow"))(work)
    return made


def back(
    fleet: Fleet,
    schedule: Any,
    *,
    down: timedelta,
    now: datetime = NOON,
    max_interval: float = 5,
    **guard: Any,
) -> list[datetime]:
    """A beat comes back after ``down`` and ticks once; the due times that it sends, in order."""
    options = {"guard": guard} if guard else {}
    beat = Beat(
        fleet,
        {"entry": {"task": "t.work", "schedule": schedule, "options": options}},
        now,
        last=now - down,
        max_interval=max_interval,
    )
    beat.step()
    return dues(fleet.messages())


def recorded(fleet: Fleet) -> dict[datetime, tuple[State, str]]:
    return {
        datetime.fromtimestamp(e.scheduled_at / 1000, UTC): (e.state, e.reason)
        for e in fleet.store.executions()
        if e.scheduled_at
    }


HOURS = [NOON - timedelta(hours=n) for n in range(4, -1, -1)]  # 8 to 12
LATE = NOON + timedelta(minutes=10)
DOWN = timedelta(hours=4)  # since 8:10


def hourly() -> crontab:
    return crontab(minute=0)


def test_once_runs_the_latest_and_leaves_the_others_out_visibly(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    assert back(fleet, hourly(), down=DOWN, now=LATE) == [NOON]
    found = recorded(fleet)
    assert set(found) == set(HOURS[1:4])
    assert all(state is State.EXPIRED and "misfire='once'" in reason for state, reason in found.values())
    keys = {execution.key for execution in fleet.store.executions()}
    assert f"t.work@entry:{int(HOURS[1].timestamp() * 1000)}" in keys
    assert {execution.entry for execution in fleet.store.executions()} == {"entry"}
    assert caplog.text.count("beat entry 'entry': due time 2026-03-04T") == 3


def test_once_runs_nothing_that_is_older_than_within(fleet: Fleet) -> None:
    assert back(fleet, hourly(), down=DOWN, now=LATE, within="9m") == []
    assert "older than within=540 s" in recorded(fleet)[NOON][1]
    assert back(fleet, hourly(), down=DOWN, now=LATE, within="11m") == [NOON]


def test_skip_runs_nothing_that_was_missed_and_goes_on(fleet: Fleet) -> None:
    beat = Beat(
        fleet,
        {"entry": {"task": "t.work", "schedule": hourly(), "options": {"guard": {"misfire": "skip"}}}},
        LATE,
        last=LATE - DOWN,
        max_interval=5,
    )
    beat.step()
    assert fleet.messages() == []
    assert set(recorded(fleet)) == set(HOURS[1:])
    beat.run(NOON + timedelta(hours=1, minutes=1))
    assert dues(fleet.messages()) == [NOON + timedelta(hours=1)]
    assert len(recorded(fleet)) == 4  # nothing is left out twice


def test_a_tick_in_the_grace_of_one_sleep_of_beat_is_not_late(fleet: Fleet) -> None:
    now = NOON + timedelta(seconds=20)
    down = timedelta(minutes=10)
    assert back(fleet, hourly(), down=down, now=now, misfire="skip") == []
    assert back(fleet, hourly(), down=down, now=now, misfire="skip", max_interval=30) == [NOON]


def test_each_runs_every_one_oldest_first(fleet: Fleet) -> None:
    assert back(fleet, hourly(), down=DOWN, now=LATE, misfire="each") == HOURS[1:]
    assert recorded(fleet) == {}


def test_each_runs_what_is_not_older_than_within(fleet: Fleet) -> None:
    got = back(fleet, hourly(), down=DOWN, now=LATE, misfire="each", within="2h30m")
    assert got == HOURS[2:]
    assert set(recorded(fleet)) == {HOURS[1]}


def test_each_goes_back_a_day_without_a_word(fleet: Fleet) -> None:
    got = back(fleet, hourly(), down=timedelta(hours=40), now=LATE, misfire="each")
    assert got == [NOON - timedelta(hours=n) for n in range(23, -1, -1)]


def test_each_is_bounded_and_says_how_many_are_left_out(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    got = back(fleet, crontab(minute="*"), down=timedelta(hours=20), misfire="each")
    assert len(got) == misfire.MOST + 1  # and the one of now
    assert got == sorted(got) and got[-1] == NOON
    assert "199 more due times were missed than the 1000" in caplog.text
    assert "celery guard backfill" in caplog.text


@pytest.mark.parametrize("length", [60.0, 300.0])
@pytest.mark.parametrize("policy", ["once", "skip", "each"])
def test_intervals_count_the_slots_that_passed(fleet: Fleet, length: float, policy: str) -> None:
    got = back(fleet, length, down=timedelta(minutes=20, seconds=3), misfire=policy)
    slots = [NOON - timedelta(seconds=length) * n for n in range(int(1200 / length), -1, -1)]
    if policy == "each":
        assert got == slots and recorded(fleet) == {}
    else:
        assert got == [NOON]  # the slot of now is never missed
        assert set(recorded(fleet)) == set(slots[:-1])


def test_drift_alone_misses_nothing(fleet: Fleet) -> None:
    """Every slot that a slow phase skips would be sent by ``each``, or be noted by ``once``."""
    lag = iter(range(10**9))
    beat = Beat(
        fleet,
        {"entry": {"task": "t.work", "schedule": 2.0, "options": {"guard": {"misfire": "each"}}}},
        NOON,
        lag=lambda: 0.3 if next(lag) % 3 == 0 else 0.05,
        max_interval=1,
    )
    beat.run(NOON + timedelta(minutes=5))
    sent = dues(fleet.messages())
    assert len(sent) == beat.scheduler.schedule["entry"].total_run_count < 149
    assert len(set(sent)) == len(sent)


def test_a_beat_that_stands_still_misses_too(fleet: Fleet) -> None:
    beat = Beat(
        fleet,
        {"entry": {"task": "t.work", "schedule": hourly(), "options": {"guard": {"misfire": "each"}}}},
        LATE,
    )
    beat.run(NOON + timedelta(hours=1, minutes=1))
    beat.now += timedelta(hours=3)
    beat.step()
    assert dues(fleet.messages()) == [NOON + timedelta(hours=n) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("schedule", [crontab(minute=0), 3600.0], ids=["crontab", "interval"])
def test_an_entry_that_was_off_and_is_on_again(fleet: Fleet, schedule: Any) -> None:
    """django-celery-beat forgets when a disabled entry ran; this process does not."""
    entry = {"task": "t.work", "schedule": schedule, "options": {"guard": {"misfire": "each"}}}
    beat = Beat(fleet, {"entry": entry}, LATE)
    beat.run(NOON + timedelta(hours=1, minutes=11))
    del beat.scheduler.schedule["entry"]
    beat.run(NOON + timedelta(hours=4, minutes=1))
    beat.put("entry", **entry)
    beat.run(NOON + timedelta(hours=5, minutes=10))
    assert dues(fleet.messages()) == [NOON + timedelta(hours=n) for n in (1, 2, 3, 4, 5)]


def test_before_its_start_time_nothing_is_due(fleet: Fleet) -> None:
    """django-celery-beat says of a new entry with a start_time that it ran thirty years ago."""
    from celery_guard.worker.beat import _not_before_start

    long_ago, start = LATE - timedelta(days=365 * 30), NOON - timedelta(hours=2)
    entry = type("Entry", (), {"model": type("Model", (), {"start_time": start})()})()
    since = _not_before_start(entry, long_ago)
    plan = misfire.plan(
        hourly(), guard=Guard(misfire="each"), since=since, handled=None, fired=LATE, grace=5000
    )
    assert [datetime.fromtimestamp(due / 1000, UTC) for due in plan.send] == HOURS[2:]


def test_what_is_older_than_the_records_is_logged_only(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows any more whether another beat ran it."""
    assert back(fleet, hourly(), down=timedelta(hours=40), now=LATE) == [NOON]
    assert min(recorded(fleet)) == NOON - timedelta(hours=23)
    assert caplog.text.count("is left out: missed") == 39


def test_a_new_schedule_of_an_entry_misses_nothing_of_its_past(fleet: Fleet) -> None:
    options = {"guard": {"misfire": "each"}}
    old = {"task": "t.work", "schedule": crontab(minute=0, hour="*/6"), "options": options}
    beat = Beat(fleet, {"entry": old}, NOON - timedelta(minutes=1))
    beat.run(NOON + timedelta(minutes=1))
    beat.run(NOON + timedelta(hours=3, minutes=1))
    beat.put("entry", task="t.work", schedule=hourly(), options=options)
    beat.run(NOON + timedelta(hours=4, minutes=1))
    assert dues(fleet.messages()) == [NOON, NOON + timedelta(hours=4)]


def test_options_come_from_the_task_the_entry_and_the_header(fleet: Fleet) -> None:
    def careful() -> None: ...

    fleet.app.task(base=GuardedTask, shared=False, name="t.careful", guard=Guard(misfire="skip"))(careful)
    by_header = {"headers": {"guard": {"misfire": "each"}}}
    entries = {
        "declared": {"task": "t.careful", "schedule": hourly()},
        "header": {"task": "t.careful", "schedule": hourly(), "options": by_header},
        "entry": {"task": "t.careful", "schedule": hourly(), "options": {"guard": {"misfire": "once"}}},
    }
    beat = Beat(fleet, entries, LATE, last=LATE - DOWN, max_interval=5)
    for _ in range(6):
        beat.step()
    sent = [header(m)["entry"] for m in fleet.messages()]
    assert sorted(sent) == ["entry", *["header"] * 4]


def test_an_unguarded_task_misfires_as_celery_does(fleet: Fleet) -> None:
    def plain() -> None: ...

    fleet.app.task(shared=False, name="t.plain")(plain)
    beat = Beat(fleet, {"plain": {"task": "t.plain", "schedule": hourly()}}, LATE, last=LATE - DOWN)
    beat.step()
    assert dues(fleet.messages()) == [NOON]
    assert fleet.store.counts() == {}


def test_what_one_beat_leaves_out_another_one_may_have_sent(fleet: Fleet) -> None:
    """Beat A was up, and its messages wait for a worker; B comes back and leaves the same due times out. And the
    other way: what has run stays as it is."""
    a = Beat(fleet, {"entry": {"task": "t.work", "schedule": hourly()}}, HOURS[0] + timedelta(minutes=10))
    a.run(LATE)
    sent = fleet.messages()
    assert dues(sent) == HOURS[1:]
    fleet.deliver(sent[0])
    back(fleet, hourly(), down=DOWN, now=LATE, misfire="skip")
    assert {due: state for due, (state, _) in recorded(fleet).items()} == {
        HOURS[1]: State.SUCCEEDED,
        **dict.fromkeys(HOURS[2:], State.EXPIRED),
    }
    for message in sent[1:]:
        fleet.deliver(message)
    back(fleet, hourly(), down=DOWN, now=LATE, misfire="skip")
    assert {state for state, _ in recorded(fleet).values()} == {State.SUCCEEDED}
    assert fleet.store.counts()["t.work", State.SUCCEEDED] == 4


def test_two_beats_that_come_back_note_a_due_time_once(fleet: Fleet) -> None:
    for _ in range(2):
        back(fleet, hourly(), down=DOWN, now=LATE, misfire="skip")
    assert fleet.store.counts() == {("t.work", State.EXPIRED): 4}


def test_a_record_lives_at_least_as_long_as_a_beat_may_send_its_due_time_again(fleet: Fleet) -> None:
    options = {"guard": {"misfire": "each", "within": "7d"}}
    entry = {"task": "t.work", "schedule": hourly(), "options": options}
    Beat(fleet, {"entry": entry}, LATE, last=LATE - timedelta(minutes=30)).step()
    fleet.work()
    fleet.clock.advance(6 * 86_400)
    fleet.store.purge()
    assert fleet.store.get(f"t.work@entry:{int(NOON.timestamp() * 1000)}") is not None


def test_without_the_store_beat_goes_on_and_says_so(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: Any, **kwargs: Any) -> Any:
        raise StoreUnavailableError("the store is away")

    monkeypatch.setattr(fleet.store, "end", away)
    assert back(fleet, hourly(), down=DOWN, now=LATE) == [NOON]
    assert caplog.text.count("what is left out is not recorded") == 1
    assert caplog.text.count("is left out: missed") == 3


@pytest.mark.parametrize("value", [None, "x", float("inf"), -3])
def test_the_grace_of_an_odd_scheduler(value: Any) -> None:
    assert misfire.grace_of(value) == misfire.LEAST_GRACE
    assert misfire.grace_of(300) == 300_000
