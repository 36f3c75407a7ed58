"""Due times by the schedule alone: time zones, both clock changes, the sun, one-time entries, RedBeat's rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import celery
import pytest
from celery.schedules import crontab, schedule, solar

from celery_guard import Guard, GuardedTask
from celery_guard.worker import slots

from .deliveries import Fleet
from .ticking import Beat, dues

PARIS = ZoneInfo("Europe/Paris")
SPRING, AUTUMN = (2026, 3, 29), (2026, 10, 25)


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet(timezone="Europe/Paris")

    def work() -> None: ...

    made.app.task(base=GuardedTask, shared=False, name="t.work", guard=Guard(overlap="allow"))(work)
    return made


def local(fleet: Fleet, of: Any, day: tuple[int, int, int]) -> list[str]:
    """The due times of a day in Paris, as its clocks show them."""
    start = datetime(*day, tzinfo=PARIS)
    end = datetime(*day[:2], day[2] + 1, tzinfo=PARIS)
    of.app = fleet.app
    found = slots.between(of, slots.to_ms(start) - 1, slots.to_ms(end) - 1)
    return [slots.to_moment(due).astimezone(PARIS).strftime("%H:%M%z") for due in found]


@pytest.mark.parametrize(
    ("day", "expected"),
    [(SPRING, ["03:30+0200"]), (AUTUMN, ["02:30+0200"])],
)
def test_half_past_two_in_paris_is_one_due_time_on_both_clock_changes(
    fleet: Fleet, day: tuple[int, int, int], expected: list[str]
) -> None:
    at_night = crontab(hour=2, minute=30)
    assert local(fleet, at_night, day) == expected
    midnight = datetime(*day, tzinfo=PARIS)
    # beats that were started at any minute of the night: together they send nothing else
    named = set()
    for minutes in range(0, 300, 13):
        start = midnight.astimezone(UTC) + timedelta(minutes=minutes)
        beat = Beat(fleet, {"night": {"task": "t.work", "schedule": crontab(hour=2, minute=30)}}, start)
        beat.run(midnight.astimezone(UTC) + timedelta(hours=6))
        sent = dues(fleet.messages())
        assert len(sent) <= 1, "Celery alone floods the queue in the repeated hour"
        named |= set(sent)
    assert [due.astimezone(PARIS).strftime("%H:%M%z") for due in named] == expected


def test_each_wall_clock_time_of_a_repeated_or_missing_hour_is_one_due_time(fleet: Fleet) -> None:
    half_hours = crontab(minute="*/30")
    assert len(local(fleet, half_hours, SPRING)) == 46
    assert len(local(fleet, half_hours, AUTUMN)) == 48
    assert len(local(fleet, half_hours, (2026, 5, 5))) == 48
    interval = schedule(timedelta(minutes=30))
    assert len(local(fleet, interval, SPRING)) == 46
    assert len(local(fleet, interval, AUTUMN)) == 50


def test_the_second_of_two_equal_wall_clock_times_is_named_as_the_first(fleet: Fleet) -> None:
    """Celery's arithmetic says the first today; one that said the second, rightly, would be another due time."""
    of = crontab(hour=2, minute=30, app=fleet.app)
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert slots._name(of, first) == slots._name(of, first + timedelta(hours=1)) == slots.to_ms(first)


@pytest.mark.parametrize("hours", [0.2, 3, 30, 400])
def test_the_latest_due_time_does_not_depend_on_what_a_beat_remembers(fleet: Fleet, hours: float) -> None:
    """Every minute, and away for days: more due times than anybody would count through."""
    now = datetime(2026, 3, 4, 12, 17, 31, tzinfo=UTC)
    for of in (crontab(minute="*", app=fleet.app), crontab(minute="*/5", app=fleet.app)):
        beat = Beat(
            fleet, {"tick": {"task": "t.work", "schedule": of}}, now, last=now - timedelta(hours=hours)
        )
        beat.step()
        (due,) = dues(fleet.messages())
        assert due == datetime(2026, 3, 4, 12, 17 if of.minute == set(range(60)) else 15, tzinfo=UTC)


def test_leap_days_and_schedules_without_a_due_time(fleet: Fleet) -> None:
    leap = crontab(minute=0, hour=12, day_of_month=29, month_of_year=2, app=fleet.app)
    found = slots.latest(leap, datetime(2026, 5, 5, tzinfo=UTC))
    assert found is not None and slots.to_moment(found).isoformat() == "2024-02-29T11:00:00+00:00"
    upcoming = slots.following(leap, datetime(2026, 5, 5, tzinfo=UTC))
    assert upcoming is not None and slots.to_moment(upcoming).isoformat() == "2028-02-29T11:00:00+00:00"


def test_sunrises_are_the_same_to_the_second_for_every_beat(fleet: Fleet) -> None:
    pytest.importorskip("ephem")
    sunrise = solar("sunrise", 48.85, 2.35, app=fleet.app)
    year = slots.to_ms(datetime(2026, 1, 1, tzinfo=UTC))
    found = list(slots.between(sunrise, year, year + 365 * 86_400_000))
    assert len(found) == 365
    for due in found:
        for later in (1, 40, 3600, 20 * 3600):
            assert slots.latest(sunrise, slots.to_moment(due + later * 1000)) == due
    start = slots.to_moment(found[10]) - timedelta(seconds=100)
    for skew in range(0, 90, 9):
        beat = Beat(
            fleet,
            {"sun": {"task": "t.work", "schedule": solar("sunrise", 48.85, 2.35)}},
            start + timedelta(seconds=skew, microseconds=skew * 1717),
        )
        beat.run(start + timedelta(minutes=5))
        assert dues(fleet.messages()) == [slots.to_moment(found[10])]


@pytest.mark.skipif(celery.VERSION < (5, 6), reason="Celery 5.5 fails where the sun does not rise")
def test_where_the_sun_does_not_rise_for_months_the_last_time_counts(fleet: Fleet) -> None:
    pytest.importorskip("ephem")
    svalbard = solar("sunrise", 78, 15, app=fleet.app)
    found = slots.latest(svalbard, datetime(2026, 7, 1, tzinfo=UTC))
    upcoming = slots.following(svalbard, datetime(2026, 7, 1, tzinfo=UTC))
    assert found is not None and slots.to_moment(found).month == 4
    assert upcoming is not None and slots.to_moment(upcoming).month == 8


def test_a_clocked_entry_has_one_due_time() -> None:
    class Clocked:  # what django-celery-beat has; tests/real runs its own
        clocked_time = datetime(2026, 5, 5, 12, tzinfo=UTC)

    noon = slots.to_ms(Clocked.clocked_time)
    assert slots.latest(Clocked(), slots.to_moment(noon + 5_000)) == noon
    assert slots.latest(Clocked(), slots.to_moment(noon - 1)) is None
    assert list(slots.between(Clocked(), noon - 1, noon)) == [noon]
    assert list(slots.between(Clocked(), noon, noon + 5)) == []


def test_redbeats_rules(fleet: Fleet) -> None:
    rules = pytest.importorskip("redbeat.schedules")
    start = datetime(2026, 1, 1, 5, tzinfo=UTC)
    daily = rules.rrule("DAILY", dtstart=start, count=3, app=fleet.app)
    days = [slots.to_ms(start + timedelta(days=n)) for n in range(3)]
    assert list(slots.between(daily, days[0] - 1, days[2] + 10**10)) == days
    assert slots.latest(daily, start + timedelta(days=1, hours=2)) == days[1]
    assert slots.following(daily, start + timedelta(days=30)) is None


def test_an_interval_of_no_whole_milliseconds_drifts_nowhere(fleet: Fleet) -> None:
    third = schedule(timedelta(microseconds=333_333), app=fleet.app)
    found = list(slots.between(third, 0, 10_000_000))
    assert len(found) == len(set(found)) == 10_000_000 * 1000 // 333_333
    for due in found[::997]:
        assert slots.latest(third, slots.to_moment(due + 1)) == due
