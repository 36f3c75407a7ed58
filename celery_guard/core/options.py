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
}

#: What an option needs beside it: partial options are checked one by one, and the rest may stand elsewhere.
_COMPANIONS: dict[str, dict[str, Any]] = {
    "wait_for": {"overlap": "wait"},
    "max_queue": {"overlap": "queue"},
    "unique_for": {"key": "any"},
}

#: Options that the design names and this version does not act on: refused rather than ignored.
_LATER = {
    "misfire": "beat catch-up of missed due times",
    "within": "beat catch-up of missed due times",
    "start_within": "expiry of late starts; Celery's own `expires` works today",
    "slots": "more than one holder of a lock",
}


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Options of a guarded task. Durations are ``timedelta``, seconds or text; invalid ones raise
    :class:`~celery_guard.core.errors.OptionError` here, where they are written.

    :param scope: what may not overlap: a template over the arguments (``"{tenant}"``) or a callable that
        takes the task's arguments. Default: the task.
    :param overlap: what a trigger means while the lock is held.
    :param wait_for: how long ``wait`` and ``queue`` stay parked before ``lock_timeout``. Default: no limit.
    :param max_queue: how many may be parked for one lock; the next one is skipped. Default: no limit.
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
                    changes.setdefault(name, None)
            if policy is Overlap.ALLOW:
                changes.setdefault("scope", None)
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
_SECONDS = ("wait_for", "unique_for", "lease", "fresh_within")


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
        if name in _LATER:
            raise OptionError(
                where=where,
                option=name,
                message=f"option {name!r} ({_LATER[name]}) is not available in this version; remove it",
            )
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
    for name, low in (("max_attempts", 1), ("max_queue", 0)):
        value = getattr(guard, name)
        if value is None and name == "max_queue":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 1_000_000:
            raise refuse(name, f"{name}={value!r} must be a whole number from {low} to 1,000,000")
    for name, allowed in (("on_store_error", ("defer", "run")), ("lock_on_retry", ("release", "hold"))):
        value = getattr(guard, name)
        if value not in allowed:
            raise refuse(name, f"{name}={value!r} is not one of {', '.join(allowed)}")
    if not isinstance(guard.record, bool):
        raise refuse("record", f"record={guard.record!r} must be True or False")
    for name in ("scope", "key"):
        value = getattr(guard, name)
        if value is None or callable(value):
            continue
        if not isinstance(value, str) or not value or len(value) > 1000:
            raise refuse(name, f"{name}={value!r} must be a template such as '{{tenant}}' or a callable")
        _check_template(name, value, refuse)
    for name, policies in _ONLY_WITH.items():
        if getattr(guard, name) is not None and guard.overlap not in policies:
            names = " or ".join(repr(str(policy)) for policy in sorted(policies))
            raise refuse(
                name,
                f"{name}={getattr(guard, name)!r} contradicts overlap={str(guard.overlap)!r}: "
                f"it bounds waiting, which only overlap={names} does",
            )
    if guard.overlap is Overlap.ALLOW and guard.scope is not None:
        raise refuse(
            "scope", "scope contradicts overlap='allow': nothing is excluded, so a scope says nothing"
        )
    if guard.unique_for is not None and guard.key is None:
        raise refuse(
            "unique_for",
            "unique_for needs key: without one every trigger has its own execution key (its task id); "
            'add key="..." over the arguments that make two triggers the same work',
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
