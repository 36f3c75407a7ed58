"""What a user declares about a job: :class:`Guard`, and the checks that every way of writing it shares.

A ``Guard(...)`` in a decorator, a plain dict in a beat entry or in ``apply_async(guard=...)``, and the JSON
of a message header go through :func:`parse`; all fail alike, naming the option, the place and the nearest
right name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Self

from .durations import Duration, seconds
from .errors import OptionError


class Overlap(StrEnum):
    """What a trigger means while the lock is held."""

    SKIP = "skip"
    WAIT = "wait"
    QUEUE = "queue"
    COALESCE = "coalesce"
    REPLACE = "replace"
    ALLOW = "allow"


KeyCallable = Callable[..., Any]

#: Options that only make sense with some policies.
_ONLY_WITH: dict[str, frozenset[Overlap]] = {
    "wait_for": frozenset({Overlap.WAIT, Overlap.QUEUE}),
    "max_queue": frozenset({Overlap.WAIT, Overlap.QUEUE}),
    "max_waiting_age": frozenset({Overlap.WAIT, Overlap.QUEUE, Overlap.COALESCE}),
    "debounce": frozenset({Overlap.COALESCE}),
    "max_delay": frozenset({Overlap.COALESCE}),
    "arguments": frozenset({Overlap.COALESCE}),
    "terminate_after": frozenset({Overlap.REPLACE}),
}
_WHAT_FOR = {
    "wait_for": "it bounds waiting",
    "max_queue": "it bounds waiting",
    "max_waiting_age": "it bounds waiting",
    "debounce": "it delays the trailing run",
    "max_delay": "it bounds how long newer triggers may put off the trailing run",
    "arguments": "it chooses the arguments of the trailing run",
    "terminate_after": "it ends the replaced attempt",
}

#: What an option needs beside it: partial options are checked one by one, and the rest may stand elsewhere.
_COMPANIONS: dict[str, dict[str, Any]] = {
    "wait_for": {"overlap": "wait"},
    "max_queue": {"overlap": "queue"},
    "max_waiting_age": {"overlap": "queue"},
    "debounce": {"overlap": "coalesce"},
    "max_delay": {"overlap": "coalesce"},
    "arguments": {"overlap": "coalesce"},
    "terminate_after": {"overlap": "replace"},
    "throttle_failures": {"throttle": 1},
    "within": {"misfire": "each"},
    "unique_for": {"key": "any"},
}
#: A free lock's quiet time is kept no longer than stores keep free locks.
_LONGEST_THROTTLE = 7 * 86400.0


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Options of a guarded task. Durations are ``timedelta``, seconds or text; invalid ones raise
    :class:`~celery_guard.core.errors.OptionError` here, where they are written.

    :param scope: what may not overlap: a template over the arguments (``"{tenant}"``) or a callable that
        takes the task's arguments. Default: the task.
    :param overlap: what a trigger means while the lock is held.
    :param wait_for: how long ``wait`` and ``queue`` stay parked before ``lock_timeout``. Default: no limit.
    :param max_queue: how many may be parked for one lock; the next one is skipped. Default: no limit.
    :param max_waiting_age: how old a parked trigger may get, counted from its publishing or due time; then it
        ends as expired. Default: no limit.
    :param slots: how many executions of the scope may run at a time.
    :param start_within: how long after its due time (or publishing, or ``eta``) a first attempt may still start;
        then it ends as expired. Default: no limit.
    :param throttle: for how long after a success the lock stays closed for others, up to a week: the overlap
        policy decides about triggers meanwhile, as if it were held. Default: not at all.
    :param throttle_failures: a failure closes the lock, too.
    :param debounce: ``coalesce`` starts its run only when no trigger came for so long. Default: at once.
    :param max_delay: how long newer triggers may put off the run of ``coalesce``. Default: a minute, or ten
        times ``debounce``.
    :param arguments: whose arguments the run of ``coalesce`` has: the ``"newest"`` or the ``"oldest"`` trigger's.
    :param terminate_after: how long after ``replace`` took over the old body may go on before its process is
        killed (prefork only). Default: it is told, and never killed.
    :param misfire: what beat does with due times that passed while it was down or the entry disabled: ``"once"``
        runs the latest, ``"skip"`` none, ``"each"`` all that are not older than ``within``.
    :param within: how old a missed due time may be to run still. Default: ``"once"`` any age, ``"each"`` a day.
    :param key: the execution key: a template or callable. Default: the task id; from beat the entry and its
        due time.
    :param unique_for: how long a succeeded execution answers for later triggers with its key. Default: what
        redelivery needs (an hour, or the broker's visibility timeout where that is longer).
    :param lease: how long a silent owner is believed.
    :param max_attempts: attempts lost before the execution is dead.
    :param fresh_within: no success for so long means stale; recorded for freshness checks.
    :param on_store_error: ``"defer"`` keeps the message and backs off, ``"run"`` runs unguarded.
    :param lock_on_retry: ``"release"`` frees the lock between two tries of a task, ``"hold"`` keeps it.
    :param record: write the trigger to the store before it is published, so that the dispatcher sends it
        should the message be lost.
    """

    scope: str | KeyCallable | None = None
    overlap: Overlap | str = Overlap.SKIP
    wait_for: Duration | None = None
    max_queue: int | None = None
    max_waiting_age: Duration | None = None
    slots: int = 1
    start_within: Duration | None = None
    throttle: Duration | None = None
    throttle_failures: bool = False
    debounce: Duration | None = None
    max_delay: Duration | None = None
    arguments: str = "newest"
    terminate_after: Duration | None = None
    misfire: str = "once"
    within: Duration | None = None
    key: str | KeyCallable | None = None
    unique_for: Duration | None = None
    lease: Duration = 60.0
    max_attempts: int = 5
    fresh_within: Duration | None = None
    on_store_error: str = "defer"
    lock_on_retry: str = "release"
    record: bool = False

    def __new__(cls, **options: Any) -> Self:
        _known(options, "Guard(...)")  # before the TypeError of __init__, which knows no nearest name
        return super().__new__(cls)

    def __post_init__(self) -> None:
        _check(self, "Guard(...)")

    def merged(self, overrides: Mapping[str, Any], where: str) -> Guard:
        """Return these options with ``overrides`` (a checked plain mapping) on top."""
        if not overrides:
            return self
        changes = dict(overrides)
        if "overlap" in changes:
            # a policy given later makes what only the earlier one needs moot, unless it is repeated
            policy = _overlap(changes["overlap"], where)
            for name, policies in _ONLY_WITH.items():
                if policy not in policies:
                    changes.setdefault(name, _DEFAULTS[name])
            if policy is Overlap.ALLOW:
                for name in _NOT_WITH_ALLOW:
                    changes.setdefault(name, _DEFAULTS[name])
        if changes.get("misfire") == "skip":
            changes.setdefault("within", None)
        known = _known(changes, where)
        try:
            return replace(self, **known)
        except OptionError as exc:
            raise OptionError(
                where=where, option=exc.facts.get("option"), message=exc.facts["message"]
            ) from None

    def wire(self) -> dict[str, Any]:
        """Return the options that differ from the defaults as JSON data. Callables stay behind: a message
        carries the keys that they gave."""
        data: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default or callable(value):
                continue
            data[field.name] = str(value) if isinstance(value, Overlap) else value
        return data


_NAMES = tuple(field.name for field in fields(Guard))
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Guard)}
_SECONDS = (
    *("wait_for", "unique_for", "lease", "fresh_within", "max_waiting_age", "start_within", "throttle"),
    *("debounce", "max_delay", "terminate_after", "within"),
)
_COUNTS = {"max_attempts": 1, "max_queue": 0, "slots": 1}
_CHOICES = {
    "on_store_error": ("defer", "run"),
    "lock_on_retry": ("release", "hold"),
    "arguments": ("newest", "oldest"),
    "misfire": ("once", "skip", "each"),
}
_FLAGS = ("record", "throttle_failures")
#: What says something about a scope; ``allow`` has none.
_NOT_WITH_ALLOW = ("scope", "slots", "throttle", "throttle_failures")


def parse(value: Guard | Mapping[str, Any] | None, where: str) -> Guard:
    """Return checked options from any of the ways to write them.

    Raises :class:`OptionError` whose message starts with ``where``.
    """
    if value is None:
        return Guard()
    if isinstance(value, Guard):
        return value
    return Guard().merged(check_mapping(value, where), where)


def check_mapping(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return ``value`` as a dict of known options, each valid by itself; used for partial options."""
    if isinstance(value, Guard):
        return value.wire()
    if not isinstance(value, Mapping):
        raise OptionError(
            where=where,
            option=None,
            message=f"guard options must be a mapping or Guard(...), not {type(value).__name__}",
        )
    known = _known(dict(value), where)
    for name, item in known.items():
        try:
            Guard(**{**_COMPANIONS.get(name, {}), name: item})
        except OptionError as exc:
            raise OptionError(where=where, option=name, message=exc.facts["message"]) from None
    return known


def _known(options: dict[str, Any], where: str) -> dict[str, Any]:
    for name in options:
        if name in _NAMES:
            continue
        near = difflib.get_close_matches(str(name), _NAMES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "known options: " + ", ".join(_NAMES)
        raise OptionError(where=where, option=str(name), message=f"unknown option {str(name)[:60]!r}; {hint}")
    return options


def _overlap(value: Any, where: str) -> Overlap:
    try:
        return Overlap(value)
    except ValueError:
        names = [str(policy) for policy in Overlap]
        near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(
            where=where,
            option="overlap",
            message=f"overlap={value!r} is not one of {', '.join(names)}{hint}",
        ) from None


def _check(guard: Guard, where: str) -> None:
    def refuse(option: str, message: str) -> OptionError:
        return OptionError(where=where, option=option, message=message)

    def put(name: str, value: Any) -> None:
        object.__setattr__(guard, name, value)

    put("overlap", _overlap(guard.overlap, where))
    for name in _SECONDS:
        value = getattr(guard, name)
        if value is None:
            if name == "lease":
                raise refuse(name, "lease=None: a lease without an end would never be recovered")
            continue
        try:
            put(name, seconds(value))
        except ValueError as exc:
            raise refuse(name, f"{name}={value!r}: {exc}") from None
    if not 0.5 <= float(guard.lease) <= 86400:  # type: ignore[arg-type]
        raise refuse("lease", f"lease={guard.lease!r}: a lease lasts between 0.5 s and one day")
    for name, low in _COUNTS.items():
        value = getattr(guard, name)
        if value is None and name == "max_queue":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 1_000_000:
            raise refuse(name, f"{name}={value!r} must be a whole number from {low} to 1,000,000")
    for name, allowed in _CHOICES.items():
        value = getattr(guard, name)
        if value not in allowed:
            raise refuse(name, f"{name}={value!r} is not one of {', '.join(allowed)}")
    for name in _FLAGS:
        value = getattr(guard, name)
        if not isinstance(value, bool):
            raise refuse(name, f"{name}={value!r} must be True or False")
    for name in ("scope", "key"):
        value = getattr(guard, name)
        if value is None or callable(value):
            continue
        if not isinstance(value, str) or not value or len(value) > 1000:
            raise refuse(name, f"{name}={value!r} must be a template such as '{{tenant}}' or a callable")
        _check_template(name, value, refuse)
    _contradictions(guard, refuse)
    if guard.unique_for is not None and guard.key is None:
        raise refuse(
            "unique_for",
            "unique_for needs key: without one every trigger has its own execution key (its task id); "
            'add key="..." over the arguments that make two triggers the same work',
        )


def _contradictions(guard: Guard, refuse: Callable[[str, str], OptionError]) -> None:
    """Options that are valid by themselves and not together; the error names both."""
    for name, policies in _ONLY_WITH.items():
        if getattr(guard, name) != _DEFAULTS[name] and guard.overlap not in policies:
            names = " or ".join(repr(str(policy)) for policy in sorted(policies))
            raise refuse(
                name,
                f"{name}={getattr(guard, name)!r} contradicts overlap={str(guard.overlap)!r}: "
                f"{_WHAT_FOR[name]}, which only overlap={names} does",
            )
    if guard.overlap is Overlap.ALLOW:
        for name in _NOT_WITH_ALLOW:
            if getattr(guard, name) != _DEFAULTS[name]:
                raise refuse(
                    name, f"{name} contradicts overlap='allow': nothing is excluded, so {name} says nothing"
                )
    if guard.throttle is not None and float(guard.throttle) > _LONGEST_THROTTLE:  # type: ignore[arg-type]
        raise refuse(
            "throttle",
            f"throttle={guard.throttle!r} is longer than a week; for 'once a period' use key with unique_for",
        )
    if guard.throttle_failures and guard.throttle is None:
        raise refuse(
            "throttle_failures", "throttle_failures needs throttle: it says what else closes the lock"
        )
    if guard.debounce is not None and guard.max_delay is not None:
        if float(guard.max_delay) < float(guard.debounce):  # type: ignore[arg-type]
            raise refuse(
                "max_delay",
                f"max_delay={guard.max_delay!r} contradicts debounce={guard.debounce!r}: it is shorter",
            )
    if guard.misfire == "skip" and guard.within is not None:
        raise refuse(
            "within", f"within={guard.within!r} contradicts misfire='skip': missed due times never run"
        )


def _check_template(name: str, template: str, refuse: Callable[[str, str], OptionError]) -> None:
    from .keys import template_fields  # the parser of templates lives with their rendering

    try:
        names = template_fields(template)
    except ValueError as exc:
        raise refuse(name, f"{name}={template!r}: {exc}") from None
    if name == "scope" and "scheduled" in names:
        raise refuse(name, f"{name}={template!r}: {{scheduled}} is for key; a scope outlives one due time")


def milliseconds(value: Duration | None) -> int | None:
    """Return a checked duration in whole milliseconds."""
    return None if value is None else int(seconds(value) * 1000)
