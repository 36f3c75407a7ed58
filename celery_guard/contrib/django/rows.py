"""Records as rows of the execution table, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from celery_guard.core.errors import StoreConfigurationError
from celery_guard.core.options import Overlap
from celery_guard.core.rules import Record
from celery_guard.core.states import State

from .fields import MAX_LENGTH

Row = dict[str, Any]

#: Columns of limited length that are compared.
_KEYS = ("key", "task", "lock_key", "trigger_id", "fingerprint", "source", "by", "owner", "entry")
#: Opaque text, which must come back as it was.
_TEXTS = ("message", "result", "checkpoint")
_PLAIN = (
    *("number", "scheduled_at", "lease", "max_attempts", "keep", "unique_for", "deadline", "token"),
    *("expires_at", "attempt", "lost_attempts", "retries", "triggers", "order", "created_at", "started_at"),
    *("finished_at", "keep_until", "due_at", "sends", "previous", "slots", "throttle", "start_by"),
    *("not_before", "put_off_since"),
)
_FLAGS = ("once_per_key", "hold", "throttle_failures")

#: All that a record is made of, in the order of every SELECT.
COLUMNS = (*_KEYS, *_TEXTS, *_PLAIN, *_FLAGS, "overlap", "state", "reason", "queue_key", "followers")

#: What not every database takes: NUL, and surrogates without their other half.
_UNSAFE = re.compile("[\x00\ud800-\udfff]")
_ESCAPED = "\x1bjson:"


def _guard(name: str, value: str | None) -> str | None:
    if value is not None and (len(value) > MAX_LENGTH or _UNSAFE.search(value)):
        raise StoreConfigurationError(
            f"{name} {value[:60]!r}... cannot be stored: at most {MAX_LENGTH} characters, no NUL and no lone "
            "surrogates; choose another"
        )
    return value


def _escape(text: str | None) -> str | None:
    if text is None or not (_UNSAFE.search(text) or text.startswith(_ESCAPED)):
        return text
    return _ESCAPED + json.dumps(text)


def _unescape(text: str | None) -> str | None:
    if text is None or not text.startswith(_ESCAPED):
        return text
    return str(json.loads(text.removeprefix(_ESCAPED)))


def encode(record: Record) -> Row:
    """Return the row of a record, ``current_key`` left out.

    Raises :class:`StoreConfigurationError` for a key that no column can hold.
    """
    row: Row = {name: _guard(name, getattr(record, name)) for name in _KEYS}
    row.update({name: _escape(getattr(record, name)) for name in _TEXTS})
    row.update({name: getattr(record, name) for name in (*_PLAIN, *_FLAGS)})
    row["overlap"] = str(record.overlap)
    row["state"] = str(record.state)
    row["reason"] = _UNSAFE.sub("\ufffd", record.reason)
    row["queue_key"] = record.lock_key if record.queued else None
    row["followers"] = json.dumps(record.followers) if record.followers else ""
    return row


def decode(values: Sequence[Any]) -> Record:
    """Return the record of a row that was read as :data:`COLUMNS`."""
    row: Mapping[str, Any] = dict(zip(COLUMNS, values, strict=True))
    facts = {name: row[name] for name in (*_KEYS, *_PLAIN)}
    facts.update({name: _unescape(row[name]) for name in _TEXTS})
    facts.update({name: bool(row[name]) for name in _FLAGS})
    return Record(
        **facts,
        overlap=Overlap(row["overlap"]),
        state=State(row["state"]),
        reason=row["reason"],
        queued=row["queue_key"] is not None,
        followers=json.loads(row["followers"]) if row["followers"] else {},
    )
