"""Options: however they are written, the same checks and the same words."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_guard.core.errors import OptionError
from celery_guard.core.options import Guard, Overlap, check_mapping, milliseconds, parse

Write = Callable[[Mapping[str, Any]], Guard]


def as_object(options: Mapping[str, Any]) -> Guard:
    return Guard(**options)


def as_dict(options: Mapping[str, Any]) -> Guard:
    return parse(options, "beat entry 'settle'")


def as_json(options: Mapping[str, Any]) -> Guard:
    return parse(json.loads(json.dumps(options)), "message header")


WAYS = {"Guard(...)": as_object, "beat entry 'settle'": as_dict, "message header": as_json}


def fails(where: str, options: Mapping[str, Any]) -> OptionError:
    with pytest.raises(OptionError) as caught:
        WAYS[where](options)
    error = caught.value
    assert str(error).startswith(f"{where}: ")
    assert error.facts["where"] == where
    return error


BAD = [
    ({"overlap": "skipp"}, "overlap", "did you mean 'skip'?"),
    ({"overlap": "coalescing"}, "overlap", "did you mean 'coalesce'?"),
    ({"overlap": None}, "overlap", "skip, wait, queue, coalesce, replace, allow"),
    ({"lease": "soon"}, "lease", "'15m'"),
    ({"lease": None}, "lease", "never be recovered"),
    ({"lease": 0.1}, "lease", "between 0.5 s and one day"),
    ({"lease": "2d"}, "lease", "between 0.5 s and one day"),
    ({"lease": -1}, "lease", "not a duration"),
    ({"lease": True}, "lease", "not a duration"),
    ({"lease": 10**400}, "lease", "not a duration"),
    ({"max_attempts": 0}, "max_attempts", "whole number from 1"),
    ({"max_attempts": None}, "max_attempts", "whole number from 1"),
    ({"max_attempts": 2.5}, "max_attempts", "whole number from 1"),
    ({"max_attempts": True}, "max_attempts", "whole number from 1"),
    ({"overlap": "queue", "max_queue": -1}, "max_queue", "whole number from 0"),
    ({"on_store_error": "ignore"}, "on_store_error", "defer, run"),
    ({"lock_on_retry": "maybe"}, "lock_on_retry", "release, hold"),
    ({"record": "yes"}, "record", "True or False"),
    ({"scope": ""}, "scope", "template such as"),
    ({"scope": 5}, "scope", "template such as"),
    ({"scope": "{tenant.id}"}, "scope", "plain {name} fields"),
    ({"scope": "{scheduled}"}, "scope", "outlives one due time"),
    ({"key": "{a!r}"}, "key", "conversion"),
    ({"key": "{a}{b}"}, "key", "nothing separates {a} from {b}"),
    ({"key": "x" * 1001}, "key", "template such as"),
    ({"misfire": "all"}, "misfire", "once, skip, each"),
    ({"slots": 0}, "slots", "whole number from 1"),
    ({"overlap": "coalesce", "arguments": "first"}, "arguments", "newest, oldest"),
    ({"throttle": "8d"}, "throttle", "longer than a week"),
    ({"throttle": 60, "throttle_failures": 1}, "throttle_failures", "True or False"),
]


@pytest.mark.parametrize("where", WAYS)
@pytest.mark.parametrize(("options", "name", "words"), BAD, ids=lambda value: str(value)[:40])
def test_a_wrong_option_is_named_alike_however_it_is_written(
    where: str, options: dict[str, Any], name: str, words: str
) -> None:
    error = fails(where, options)
    assert error.facts["option"] == name
    assert name in str(error)
    assert words in str(error)
    texts = {str(fails(way, options)).removeprefix(f"{way}: ") for way in WAYS}
    assert len(texts) == 1


@pytest.mark.parametrize("where", WAYS)
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("overlp", "overlap"),
        ("overlaps", "overlap"),
        ("wait", "wait_for"),
        ("max_attempt", "max_attempts"),
        ("lease_time", "lease"),
        ("on_error", "on_store_error"),
        ("unique", "unique_for"),
        ("scop", "scope"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_name(where: str, written: str, meant: str) -> None:
    error = fails(where, {written: 1})
    assert error.facts["option"] == written
    assert f"unknown option {written!r}; did you mean {meant!r}?" in str(error)


@pytest.mark.parametrize("where", WAYS)
def test_an_unknown_option_that_is_near_to_nothing_is_answered_with_all(where: str) -> None:
    assert "known options: scope, overlap, wait_for" in str(fails(where, {"zzz": 1}))


@pytest.mark.parametrize("where", WAYS)
@pytest.mark.parametrize(
    ("options", "both"),
    [
        ({"wait_for": "5m"}, ("wait_for", "overlap='skip'")),
        ({"overlap": "coalesce", "wait_for": 5}, ("wait_for", "overlap='coalesce'")),
        ({"overlap": "skip", "max_queue": 5}, ("max_queue", "overlap='skip'")),
        ({"overlap": "replace", "max_queue": 5}, ("max_queue", "overlap='replace'")),
        ({"overlap": "allow", "scope": "{a}"}, ("scope", "overlap='allow'")),
        ({"overlap": "allow", "slots": 3}, ("slots", "overlap='allow'")),
        ({"overlap": "queue", "debounce": 3}, ("debounce", "overlap='queue'")),
        ({"terminate_after": 3}, ("terminate_after", "overlap='skip'")),
        ({"throttle_failures": True}, ("throttle_failures", "throttle")),
        ({"misfire": "skip", "within": "1h"}, ("within", "misfire='skip'")),
        ({"overlap": "coalesce", "debounce": 5, "max_delay": 1}, ("max_delay", "debounce")),
        ({"unique_for": "1h"}, ("unique_for", "key")),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_both_named(
    where: str, options: dict[str, Any], both: tuple[str, str]
) -> None:
    text = str(fails(where, options))
    assert all(name in text for name in both), text


@pytest.mark.parametrize("value", ["skip", 5, ["overlap"], True])
def test_options_are_a_mapping_or_a_guard(value: Any) -> None:
    with pytest.raises(OptionError, match=f"not {type(value).__name__}"):
        parse(value, "beat entry 'settle'")


# --- what is right ----------------------------------------------------------------------------------------


def test_the_defaults_are_the_documented_ones() -> None:
    guard = Guard()
    assert guard == parse(None, "") == parse({}, "")
    assert (guard.overlap, guard.lease, guard.max_attempts) == (Overlap.SKIP, 60.0, 5)
    assert (guard.on_store_error, guard.lock_on_retry, guard.record) == ("defer", "release", False)
    assert guard.scope is guard.key is guard.wait_for is guard.max_queue is None
    assert guard.unique_for is guard.fresh_within is None
    assert guard.wire() == {}


@pytest.mark.parametrize("lease", [90, 90.0, "90s", "1m30s", "1.5m", timedelta(seconds=90)])
def test_a_duration_may_be_written_in_any_way(lease: Any) -> None:
    assert Guard(lease=lease) == Guard(lease=90)
    assert Guard(lease=lease).lease == 90.0


def test_milliseconds() -> None:
    assert (milliseconds(None), milliseconds("1.5s"), milliseconds(0)) == (None, 1500, 0)


plain_options = st.fixed_dictionaries(
    {},
    optional={
        "scope": st.sampled_from(["{tenant}", "all"]),
        "key": st.sampled_from(["{a}:{b}", "{scheduled:%Y-%m-%d}"]),
        "lease": st.floats(0.5, 86400) | st.sampled_from(["90s", "15m"]),
        "max_attempts": st.integers(1, 1_000_000),
        "fresh_within": st.sampled_from(["26h", 10]),
        "on_store_error": st.sampled_from(["defer", "run"]),
        "lock_on_retry": st.sampled_from(["release", "hold"]),
        "record": st.booleans(),
    },
)
bounds = st.fixed_dictionaries(
    {"overlap": st.sampled_from(["wait", "queue"])},
    optional={"wait_for": st.integers(0, 86400), "max_queue": st.integers(0, 1000)},
)


@settings(max_examples=60, deadline=None)
@given(plain_options, st.just({}) | bounds)
def test_options_come_through_a_message_unchanged(options: dict[str, Any], more: dict[str, Any]) -> None:
    guard = Guard(**options, **more)
    assert parse(json.loads(json.dumps(guard.wire())), "header") == guard
    assert Guard().merged(guard.wire(), "header") == guard
    assert pickle.loads(pickle.dumps(guard)) == copy.copy(guard) == copy.deepcopy(guard) == guard


def test_callables_stay_behind_when_options_travel() -> None:
    assert Guard(key=lambda a: a, scope=str, lease=5).wire() == {"lease": 5.0}


def test_a_guard_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Guard().lease = 5  # type: ignore[misc]


# --- options on top of others -----------------------------------------------------------------------------


def test_what_is_given_later_wins_and_the_rest_stays() -> None:
    merged = Guard(lease=5, scope="{a}").merged({"lease": "10s"}, "apply_async")
    assert (merged.lease, merged.scope) == (10.0, "{a}")
    assert Guard(lease=5).merged({}, "apply_async") == Guard(lease=5)


def test_another_policy_makes_moot_what_only_the_earlier_one_needs() -> None:
    queue = Guard(overlap="queue", wait_for="5m", max_queue=3, scope="{a}")
    merged = queue.merged({"overlap": "skip"}, "apply_async")
    assert (merged.overlap, merged.wait_for, merged.max_queue) == (Overlap.SKIP, None, None)
    assert queue.merged({"overlap": "allow"}, "apply_async").scope is None
    assert queue.merged({"overlap": "wait"}, "apply_async").wait_for == 300.0


def test_a_bound_alone_may_be_given_to_a_task_that_waits() -> None:
    options = check_mapping({"wait_for": "1m"}, "apply_async(guard=...)")
    assert Guard(overlap="wait").merged(options, "apply_async").wait_for == 60.0
    with pytest.raises(OptionError, match=r"^apply_async: wait_for=.* contradicts overlap='skip'"):
        Guard().merged(options, "apply_async")


def test_partial_options_are_checked_where_they_are_written() -> None:
    with pytest.raises(OptionError, match=r"^here: unknown option 'leese'; did you mean 'lease'"):
        check_mapping({"leese": 1}, "here")
    with pytest.raises(OptionError, match=r"^here: lease=.*not a duration"):
        check_mapping({"lease": "x"}, "here")
    assert check_mapping({"unique_for": "1h"}, "here") == {"unique_for": "1h"}
