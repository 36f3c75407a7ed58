"""Between the contract's data and what goes to and comes from a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ...core.contract import (
    Acquired,
    Answered,
    Begun,
    Dispatch,
    Done,
    Execution,
    InFlight,
    Joined,
    Lease,
    Mismatch,
    Parked,
    Refused,
    Trigger,
)
from ...core.options import Overlap
from ...core.states import State

#: What `get` and `executions` ask for; the scripts need ``number`` and ``task`` first.
FIELDS = (
    "number",
    "task",
    "lock_key",
    "state",
    "trigger_id",
    "reason",
    "by",
    "source",
    "overlap",
    "scheduled_at",
    "entry",
    "fingerprint",
    "owner",
    "token",
    "attempt",
    "lost_attempts",
    "retries",
    "triggers",
    "created_at",
    "started_at",
    "finished_at",
    "expires_at",
    "checkpoint",
    "previous",
)
_NUMBERS = frozenset(
    {
        "number",
        "scheduled_at",
        "token",
        "attempt",
        "lost_attempts",
        "retries",
        "triggers",
        "created_at",
        "started_at",
        "finished_at",
        "expires_at",
        "previous",
    }
)


def text(value: Any) -> str:
    """Return a reply's text."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)


def optional(value: str | None) -> str:
    """Return an argument that may be missing: '' for none, else '+' and the text."""
    return "" if value is None else "+" + value


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def trigger_args(trigger: Trigger) -> list[Any]:
    """Return a trigger as the 21 arguments that ``trigger_at`` reads."""
    return [
        trigger.key,
        trigger.task,
        trigger.lock_key,
        trigger.trigger_id,
        trigger.fingerprint,
        trigger.message,
        trigger.source,
        trigger.order,
        _number(trigger.scheduled_at),
        str(trigger.overlap),
        trigger.lease,
        trigger.max_attempts,
        trigger.keep,
        trigger.unique_for,
        _flag(trigger.once_per_key),
        _flag(trigger.reopen),
        _number(trigger.wait_for),
        _number(trigger.max_queue),
        _flag(trigger.hold),
        optional(trigger.entry),
        _rare(trigger),
    ]


#: What few triggers ask for: one JSON object with what differs from these.
_RARE: dict[str, Any] = {
    field.name: field.default
    for field in fields(Trigger)
    if field.name
    in {
        "slots",
        "start_by",
        "max_waiting_age",
        "throttle",
        "throttle_failures",
        "debounce",
        "max_delay",
        "oldest",
    }
}


def _rare(trigger: Trigger) -> str:
    asked = {name: getattr(trigger, name) for name in _RARE}
    return "" if asked == _RARE else json.dumps({k: v for k, v in asked.items() if v != _RARE[k]})


def dispatches(items: Sequence[Any]) -> list[Dispatch]:
    """Read messages to send."""
    return [
        Dispatch(key=text(key), trigger_id=text(trigger_id), message=text(message or b""), why=text(why))
        for key, trigger_id, message, why in items
    ]


def answer(item: Any) -> Done | Refused:
    """Read ``done`` or ``refused``."""
    if text(item[0]) == "done":
        return Done(state=State(text(item[1])), dispatches=dispatches(item[2]))
    return Refused(reason=text(item[1]), state=State(text(item[2])) if item[2] else None)


def begun(item: Any) -> Begun:
    """Read the answer to begin."""
    return Begun(answer=_begun(item[0]), dispatches=dispatches(item[1]))


def _begun(item: Any) -> Acquired | Answered | InFlight | Joined | Parked | Mismatch:
    kind = text(item[0])
    if kind == "acquired":
        key, lock_key, owner = (text(value) for value in item[1:4])
        lease = Lease(key=key, lock_key=lock_key, owner=owner, token=int(item[4]), lease=int(item[5]))
        return Acquired(
            lease=lease,
            attempt=int(item[6]),
            expires_at=int(item[7]),
            checkpoint=text(item[8]) if item[8] is not None else None,
        )
    if kind == "answered":
        return Answered(
            state=State(text(item[1])),
            reason=text(item[2]),
            result=text(item[3]) if item[3] is not None else None,
            trigger_id=text(item[4]),
            by=text(item[5]) if item[5] is not None else None,
        )
    if kind == "in_flight":
        return InFlight(state=State(text(item[1])))
    if kind == "joined":
        return Joined(trigger_id=text(item[1]))
    if kind == "parked":
        return Parked(ahead=int(item[1]))
    return Mismatch(trigger_id=text(item[1]))


def execution(key: str, values: Sequence[Any]) -> Execution:
    """Read a record's fields; absent ones have the default."""
    data: dict[str, Any] = {}
    for name, value in zip(FIELDS, values, strict=True):
        if value is None:
            continue
        data[name] = int(value) if name in _NUMBERS else text(value)
    data["state"] = State(data.get("state", State.PENDING))
    data["overlap"] = Overlap(data.get("overlap", Overlap.SKIP))
    return Execution(key=key, **data)
