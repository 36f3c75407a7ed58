"""Keys: one text for equal calls however they were written, and never one text for two different calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from celery_guard.core.errors import KeyArgumentError, KeyTemplateError
from celery_guard.core.keys import (
    MAX_KEY,
    NoCanonicalForm,
    bind,
    canonical,
    fingerprint,
    render,
    shorten,
    template_fields,
)


def call(a: Any, b: Any = 2, *, options: Any = None) -> None:
    """A task's signature."""


def arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return bind(call, args, kwargs)


def of(*args: Any, **kwargs: Any) -> str:
    return fingerprint("task", arguments(*args, **kwargs))


def key(template: str, /, **values: Any) -> str:
    return render("key", template, task="task", arguments=values, args=(), kwargs=values)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Carrier(StrEnum):
    DELTA = "DL"


class Model:
    """What a Django model's instance is to us."""

    id = 7


# --- equal calls ------------------------------------------------------------------------------------------


def test_equal_calls_written_differently_are_one() -> None:
    spellings = [of(1, b=2), of(b=2, a=1), of(1), of(a=1), of(1, 2), of(1, options=None)]
    assert len(set(spellings)) == 1


def test_other_arguments_and_other_tasks_are_others() -> None:
    assert len({of(1), of(2), of(1, 3), of(1, options={}), fingerprint("other", arguments(1))}) == 5


def test_the_order_of_dict_keys_does_not_matter_at_any_depth() -> None:
    one = {"x": {"p": [1, {"m": 1, "n": 2}], "q": 2}, "y": 3}
    two = {"y": 3, "x": {"q": 2, "p": [1, {"n": 2, "m": 1}]}}
    assert of(one) == of(two)
    assert key("{a}", a=one) == key("{a}", a=two)
    assert of([1, 2]) != of([2, 1])


def test_keys_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from celery_guard.core.keys import fingerprint, render\n"
        "a = {'s': {'x', 'y', 'z', 'ä'}, 'd': dict.fromkeys('qwertz', 1), 'f': frozenset('abc')}\n"
        "print(fingerprint('task', a), render('key', '{s}:{d}', task='t', arguments=a, args=(), kwargs=a))\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(printed) == 1


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        10**30,
        1.5,
        1.0,
        "text",
        "é☃🛫",
        [1, [2, (3,)]],
        (1, 2),
        {"a": {"b": 1}},
        {1: "int", 2: "key"},
        {None: 1},
        {1.5: 1},
        UUID("12345678-1234-5678-1234-567812345678"),
        Decimal("1.50"),
        datetime(2026, 11, 30, 1, 2, 3, 456, tzinfo=UTC),
        datetime(2026, 11, 30, 1, 2, 3, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        datetime(2026, 11, 30, 1, 2, 3),  # noqa: DTZ001 - a naive one is a value too
        date(2026, 11, 30),
        time(1, 2, 3),
        Carrier.DELTA,
        Level.HIGH,
    ],
    ids=repr,
)
def test_a_key_is_the_same_before_and_after_the_serializer(value: Any) -> None:
    args, kwargs = loads(dumps([[value], {"options": {"v": value}}]))
    assert of(value, options={"v": value}) == of(*args, **kwargs)
    assert key("{a}", a=value) == key("{a}", a=args[0])


# --- the canonical form, as documented --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (None, None),
        (1, 1),
        (1.5, 1.5),
        ("1", "1"),
        (UUID("12345678-1234-5678-1234-56781234ABCD"), "12345678-1234-5678-1234-56781234abcd"),
        (Decimal("1.500"), "1.5"),
        (Decimal("1E+3"), "1000"),
        (Decimal("-0.0"), "0"),
        (Decimal("100"), "100"),
        (datetime(2026, 11, 30, 2, 0, tzinfo=timezone(timedelta(hours=2))), "2026-11-30T00:00:00Z"),
        (datetime(2026, 11, 30, 2, 0), "2026-11-30T02:00:00"),  # noqa: DTZ001 - stays without a zone
        (date(2026, 11, 30), "2026-11-30"),
        (time(2, 0), "02:00:00"),
        (timedelta(minutes=1, milliseconds=500), "60.5"),
        (timedelta(0), "0"),
        (timedelta(seconds=-90), "-90"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Carrier.DELTA, "DL"),
        ((1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        ({"c", "a", "b"}, ["a", "b", "c"]),
        (frozenset("a"), ["a"]),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        ({2: "x"}, {"2": "x"}),
        ({True: 1, None: 2}, {"null": 2, "true": 1}),
    ],
    ids=lambda value: repr(sorted(value)) if isinstance(value, set | frozenset) else repr(value),
)
def test_the_canonical_form_is_the_documented_one(value: Any, form: Any) -> None:
    assert canonical(value) == form
    assert type(canonical(value)) is type(form)


def test_one_true_and_the_text_one_differ_in_a_fingerprint() -> None:
    assert len({of(1), of(True), of("1"), of(1.0), of("true"), of(None), of("null"), of(0), of(False)}) == 9


def test_in_a_key_a_number_and_its_text_are_alike_and_the_fingerprint_tells_them_apart() -> None:
    assert key("{a}", a=1) == key("{a}", a="1") == "1"
    assert key("{a}", a=True) == "true"
    assert key("{a}", a=None) == "null"


def test_one_moment_in_two_zones_is_one_value() -> None:
    moment = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    assert of(moment) == of(moment.astimezone(timezone(timedelta(hours=-8))))


@pytest.mark.parametrize(
    "value",
    [
        lambda: 1,
        Model(),
        Model,
        object(),
        b"bytes",
        1j,
        float("nan"),
        float("inf"),
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("-Infinity"),
        iter([1]),
        {"nested": [Model()]},
        {Model(): 1},
        {(1, 2): 1},
        {1: "a", "1": "b"},
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        sys,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_canonical_form_is_an_error_that_names_the_argument(value: Any) -> None:
    with pytest.raises(KeyArgumentError) as caught:
        of(1, value)
    assert (caught.value.facts["task"], caught.value.facts["argument"]) == ("task", "b")
    assert "'b'" in str(caught.value)
    with pytest.raises(KeyArgumentError, match="'a'"):
        key("{a}", a=value)


def test_no_error_shows_a_memory_address() -> None:
    with pytest.raises(KeyArgumentError) as caught:
        of(Model())
    assert "0x" not in str(caught.value)


def test_what_contains_itself_is_an_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NoCanonicalForm):
        canonical(endless)


# --- binding ----------------------------------------------------------------------------------------------


def test_arguments_are_bound_by_name_with_defaults() -> None:
    assert arguments(1) == {"a": 1, "b": 2, "options": None}


def test_further_arguments_are_bound_too() -> None:
    def task(a: int, *rest: int, **more: int) -> None:
        """Takes anything."""

    assert bind(task, (1, 2, 3), {"x": 4}) == {"a": 1, "rest": (2, 3), "x": 4}


def test_a_keyword_beside_a_positional_only_argument_of_its_name_counts() -> None:
    def task(a: int, /, **more: int) -> None:
        """Has two of that name."""

    one, two = bind(task, (1,), {"a": 2}), bind(task, (1,), {"a": 3})
    assert fingerprint("task", one) != fingerprint("task", two)
    assert one["a"] == 1


def test_a_task_known_by_name_only_is_bound_by_place() -> None:
    assert bind(None, (1, 2), {"c": 3}) == {"0": 1, "1": 2, "c": 3}


def test_a_call_that_does_not_fit_is_left_to_celery_to_report() -> None:
    assert bind(call, (), {"nonsense": 1}) == {"nonsense": 1}


# --- templates --------------------------------------------------------------------------------------------


def test_a_template_is_filled_in() -> None:
    assert key("{carrier}:{year}", carrier="AA", year=2013) == "AA:2013"
    assert key("tenant={a}", a="acme") == "tenant=acme"
    assert key("{a}-x", a="2013-01-05") == "2013-01-05-x"
    assert key("no field") == "no field"


def test_what_could_be_mistaken_is_percent_encoded() -> None:
    assert key("{a}:{b}", a="x:y", b="100%\n{z}") == "x%3Ay:100%25%0A%7Bz%7D"
    assert key("{a}-{b}", a="x-y", b="y-z") == "x%2Dy-y-z"
    assert key("{a}{{{b}", a="x{", b="y") == "x%7B{y"


@pytest.mark.parametrize("template", ["{a}{b}", "{a}2{b}", "{a}F{b}", "{a}%{b}", "{a}:{b}{c}"])
def test_a_template_that_cannot_tell_two_fields_apart_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="nothing separates"):
        template_fields(template)


values = st.text(alphabet="ab:%-/{} 2AF3\n☃", max_size=6)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["{a}:{b}", "{a}-{b}", "{a}/x/{b}", "<{a}> {b}", "{a}g{b}", "{a}{{{b}", "{a}☃{b}"]),
    st.tuples(values, values),
    st.tuples(values, values),
)
def test_two_different_pairs_never_make_one_text(
    template: str, one: tuple[str, str], two: tuple[str, str]
) -> None:
    template_fields(template)
    if one != two:
        assert key(template, a=one[0], b=one[1]) != key(template, a=two[0], b=two[1])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["{a}:{b}", "{a}-{b}", "{a}g{b}", "{a}☃{b}"]), values, values)
def test_a_text_can_be_read_back(template: str, a: str, b: str) -> None:
    """Stronger than drawing two pairs that happen to collide: the first sign ends the first value."""
    sign = template[3]
    first, _, second = key(template, a=a, b=b).partition(sign)
    assert first == key("{a}", a=a).replace(sign, f"%{ord(sign):02X}")
    assert second == key("{b}", b=b)


json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None)
@given(json_data)
def test_json_data_is_the_same_before_and_after_json(data: Any) -> None:
    assert fingerprint("task", {"a": data}) == fingerprint("task", {"a": json.loads(json.dumps(data))})
    assert canonical(canonical(data)) == canonical(data)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.text(max_size=5), st.integers() | st.lists(st.booleans()), max_size=6),
    st.integers(0, 5),
)
def test_a_reordered_dict_is_the_same(data: dict[str, Any], first: int) -> None:
    items = list(data.items())
    for other in (dict(reversed(items)), dict(items[first:] + items[:first])):
        assert fingerprint("task", {"a": data}) == fingerprint("task", {"a": other})


@pytest.mark.parametrize(
    "template", ["{a.b}", "{a[0]}", "{}", "{0}", "{a!r}", "{a:>10}", "{a:{b}}", "{scheduled:{b}}", "{a", "a}"]
)
def test_only_plain_fields_are_allowed(template: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        template_fields(template)


def test_fields_are_found() -> None:
    assert template_fields("{a}:{b}:{scheduled:%Y-%m-%d}") == ["a", "b", "scheduled"]


def test_a_field_that_the_task_does_not_have_is_named_with_those_it_has() -> None:
    with pytest.raises(KeyTemplateError, match=r"no argument 'tennant'; it has tenant, day") as caught:
        key("{tennant}", tenant=1, day=2)
    assert caught.value.facts["option"] == "key"


def test_the_due_time_is_rendered_in_its_zone() -> None:
    due = datetime(2026, 11, 30, 23, 30, tzinfo=timezone(timedelta(hours=1)))
    given_ = {"task": "task", "arguments": {}, "args": (), "kwargs": {}, "scheduled_at": due}
    assert render("key", "{scheduled:%Y-%m-%d}", **given_) == "2026-11-30"
    assert render("key", "{scheduled}", **given_) == "2026-11-30T22:30:00+00:00"


def test_without_a_due_time_the_template_that_needs_one_is_an_error() -> None:
    with pytest.raises(KeyTemplateError, match="scheduled"):
        key("{scheduled}")


def test_an_argument_called_scheduled_is_an_argument() -> None:
    assert key("{scheduled}", scheduled="now") == "now"


def test_a_callable_makes_a_key_of_the_arguments() -> None:
    def chosen(a: int, b: int = 0) -> Any:
        return [a, b]

    given_ = {"task": "task", "arguments": {}, "args": (1,), "kwargs": {"b": 2}}
    assert render("key", chosen, **given_) == "[1,2]"
    with pytest.raises(KeyArgumentError, match=r"scope\(\.\.\.\)"):
        render("scope", lambda *_args, **_kwargs: object(), **given_)


# --- length -----------------------------------------------------------------------------------------------


def test_a_short_key_stays_as_it_is() -> None:
    assert shorten("task:a b%3A") == "task:a b%3A"
    assert shorten("x" * MAX_KEY) == "x" * MAX_KEY


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=400), st.text(max_size=400))
def test_a_shortened_key_fits_any_index_and_stays_apart(one: str, two: str) -> None:
    for text in (shorten(one), shorten("x" * 300 + one)):
        assert len(text) <= MAX_KEY
        assert text.isascii()
    if one != two:
        assert shorten("x" * 300 + one) != shorten("x" * 300 + two)
