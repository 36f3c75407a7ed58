"""Execution and lock keys: one canonical text for equal calls, however they were written.

The canonical form of a value is what JSON would make of it on the way through a broker, so a key is the same
before and after the serializer:

========================  ==================================================================
value                     canonical form
========================  ==================================================================
``None``, bool, int, str  themselves (``1``, ``True`` and ``"1"`` differ in a fingerprint)
float                     shortest text; ``1.0`` differs from ``1``; no NaN or infinity
``Decimal``               plain digits without trailing zeros, as text
``UUID``                  hyphenated lower-case text
aware datetime            ISO 8601 in UTC; a naive one keeps no zone
date, time                ISO 8601; ``timedelta``: seconds as text
enum                      its value
list, tuple               list
set, frozenset            sorted list
dict                      sorted by key; keys as text
========================  ==================================================================

Nothing else has one: no ``repr``, no memory address, no pickle.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from .errors import KeyArgumentError, KeyTemplateError

#: Longer keys are cut and end in a digest, so that every store can index them.
MAX_KEY = 200

_SCHEDULED = "scheduled"
#: What escapes are written with: none of these can show where a value ends.
_OF_ESCAPES = "%0123456789ABCDEF"
_RESERVED = re.compile(r"[%:{}\x00-\x1f\x7f]")


class NoCanonicalForm(ValueError):  # noqa: N818 - internal: becomes KeyArgumentError with the argument's name
    """The value has no canonical form."""


def canonical(value: Any, _depth: int = 0) -> Any:
    """Return ``value`` as JSON data in canonical form. Raises :class:`NoCanonicalForm`."""
    if _depth > 32:
        raise NoCanonicalForm("it is nested too deeply")
    if isinstance(value, Enum):
        return canonical(value.value, _depth + 1)
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoCanonicalForm(f"{value} is not a number that JSON has")
        return float(value)
    scalar = _scalar(value)
    if scalar is not None:
        return scalar
    if isinstance(value, list | tuple):
        return [canonical(item, _depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((canonical(item, _depth + 1) for item in value), key=_text)
    if isinstance(value, Mapping):
        pairs = {_dict_key(key): canonical(item, _depth + 1) for key, item in value.items()}
        if len(pairs) != len(value):
            raise NoCanonicalForm("two of its keys have the same text")
        return {key: pairs[key] for key in sorted(pairs)}
    raise NoCanonicalForm(f"a {type(value).__module__}.{type(value).__qualname__} is not data")


def _scalar(value: Any) -> str | None:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise NoCanonicalForm(f"{value} is not a number")
        digits = format(value, "f")
        if "." in digits:
            digits = digits.rstrip("0").rstrip(".")
        return "0" if digits in ("-0", "") else digits
    if isinstance(value, datetime):
        if value.tzinfo is not None and value.utcoffset() is not None:
            try:
                return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
            except OverflowError:
                raise NoCanonicalForm(f"{value.isoformat()} has no time in UTC") from None
        return value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return format(Decimal(value // timedelta(microseconds=1)) / 1_000_000, "f")
    return None


def _dict_key(key: Any) -> str:
    if isinstance(key, bool) or key is None:
        return json.dumps(key)
    form = canonical(key)
    if isinstance(form, str):
        return form
    if isinstance(form, int | float):
        return json.dumps(form)
    raise NoCanonicalForm("a dict key is not a plain value")


def _text(form: Any) -> str:
    return json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


@lru_cache(maxsize=2048)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Reading a signature costs more than binding to it, and a task's does not change."""
    return inspect.signature(function)


def bind(
    function: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments by name, defaults filled in; positional ones by place where the signature is not
    known (a task sent by name only). A call that does not fit is bound as far as it goes: Celery reports it.
    """
    if function is None:
        return {**{f"{index}": item for index, item in enumerate(args)}, **kwargs}
    signature = _signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return {**{f"{index}": item for index, item in enumerate(args)}, **kwargs}
    bound.apply_defaults()
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            # beside a positional-only argument of the same name, it is another one
            named.update({f"**{key}" if key in named else key: item for key, item in value.items()})
        else:
            named[name] = value
    return named


def fingerprint(task: str, arguments: Mapping[str, Any]) -> str:
    """Return a digest of the task's name and all its arguments (64 hex digits).

    Raises :class:`KeyArgumentError` naming the argument that has no canonical form.
    """
    forms = {name: _canonical_argument(task, name, value) for name, value in arguments.items()}
    return hashlib.sha256(_text([task, forms]).encode()).hexdigest()


def _canonical_argument(task: str, name: str, value: Any) -> Any:
    try:
        return canonical(value)
    except NoCanonicalForm as exc:
        raise KeyArgumentError(task=task, argument=name, message=str(exc)) from None


def _pieces(template: str) -> list[tuple[str, str | None, str, str | None]]:
    """Return each literal text and the field after it (name, format, conversion); the last may have none."""
    pieces: list[tuple[str, str | None, str, str | None]] = []
    text = ""
    for literal, name, spec, conversion in string.Formatter().parse(template):
        text += literal
        if name is not None:
            pieces.append((text, name, spec or "", conversion))
            text = ""
    return [*pieces, (text, None, "", None)] if text else pieces


def template_fields(template: str) -> list[str]:
    """Return the names in a template. Raises :class:`ValueError` for anything but plain ``{name}`` fields
    (attribute access, indexing and conversions would reach into objects) and ``{scheduled:%Y-%m-%d}``, and
    for two fields between which nothing shows where the first one ends."""
    names: list[str] = []
    for literal, name, spec, conversion in _pieces(template):
        if name is None:
            continue
        if names and (not literal or literal[0] in _OF_ESCAPES):
            raise ValueError(
                f"nothing separates {{{names[-1]}}} from {{{name}}}: put a sign such as ':' between them, or "
                "two different pairs of arguments make one text"
            )
        if not name.isidentifier():
            raise ValueError(f"{{{name}}} is not the name of an argument: write plain {{name}} fields")
        if conversion:
            raise ValueError(f"conversion !{conversion} in {{{name}}} is not allowed")
        if spec and (name != _SCHEDULED or "{" in spec):
            raise ValueError(
                f"a format in {{{name}:{spec}}} is not allowed; only {{scheduled:...}} takes one"
            )
        names.append(name)
    return names


def render(
    what: str,
    template: str | Callable[..., Any],
    *,
    task: str,
    arguments: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    scheduled_at: datetime | None = None,
) -> str:
    """Return the text of a key or scope.

    In values ``%``, ``:``, braces, control characters and the sign that follows the field are
    percent-encoded, so two different pairs of arguments never make one text. ``None`` renders as ``null``,
    booleans as ``true`` and ``false``; ``1`` and ``"1"`` render alike (the fingerprint tells them apart).
    Raises :class:`KeyArgumentError` or :class:`KeyTemplateError`.
    """
    if callable(template):
        try:
            value = template(*args, **kwargs)
        except Exception as exc:  # whatever the user's own code raises
            raise KeyArgumentError(
                argument=f"{what}(...)", task=task, message=f"the callable raised {type(exc).__name__}: {exc}"
            ) from exc
        return _piece(task, f"{what}(...)", value)
    parts = []
    pieces = _pieces(template)
    signs = [literal[:1] if name else "" for literal, name, _, _ in pieces[1:]]
    for (literal, name, spec, _conversion), sign in zip(pieces, [*signs, ""], strict=True):
        parts.append(literal)
        if name is None:
            continue
        if name == _SCHEDULED and name not in arguments:
            parts.append(_due(what, template, spec, scheduled_at))
        elif name in arguments:
            parts.append(_piece(task, name, arguments[name], sign))
        else:
            raise KeyTemplateError(
                where=f"{what}={template!r} of task {task!r}",
                option=what,
                message=f"the task has no argument {name!r}; it has {', '.join(arguments) or 'none'}",
            )
    return "".join(parts)


def _piece(task: str, name: str, value: Any, sign: str = "") -> str:
    """Return the text of one value; ``sign`` is what shows its end."""
    form = _canonical_argument(task, name, value)
    text = _RESERVED.sub(_escape, form if isinstance(form, str) else _text(form))
    return text.replace(sign, f"%{ord(sign):02X}") if sign and sign not in _OF_ESCAPES else text


def _escape(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def _due(what: str, template: str, spec: str, scheduled_at: datetime | None) -> str:
    if scheduled_at is None:
        raise KeyTemplateError(
            where=f"{what}={template!r}",
            option=what,
            message="{scheduled} is the due time of a beat entry and this trigger has none; "
            "trigger it from beat or name another field",
        )
    return scheduled_at.strftime(spec) if spec else scheduled_at.astimezone(UTC).isoformat()


def shorten(key: str) -> str:
    """Return ``key``, or where it is too long for an index its start and a digest of the whole."""
    if len(key) <= MAX_KEY and key.isascii():
        return key
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    start = re.sub(r"[^\x21-\x7e]", "_", key[: MAX_KEY - 66])
    return f"{start}~{digest}"
