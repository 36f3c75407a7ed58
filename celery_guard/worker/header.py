"""The one message header, ``guard``: how options and a trigger's origin travel, whatever publishes.

``{"v": 1, "options": {...}, "at": ms, "src": "beat", "entry": "...", "due": ms, "key": "..."}``. A header that a
user writes by hand (the only place that django-celery-beat keeps) is just the options: ``{"overlap": "queue"}``.
Everything in it is foreign input and checked when read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import OptionError
from ..core.keys import MAX_KEY
from ..core.options import check_mapping

HEADER = "guard"
#: Where a message says that it is an explicit replay.
REPLAY = "replay"
_SOURCES = frozenset({"call", "beat", "replay", "backfill", "recovery"})
_LATEST = 4_102_444_800_000  # the year 2100


@dataclass(frozen=True, kw_only=True)
class Header:
    """A checked header."""

    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = "call"
    published_at: int = 0
    entry: str | None = None
    due: int | None = None
    #: set by a retry: the execution stays the same whatever its new arguments are
    key: str | None = None
    deferrals: int = 0
    #: the store has the whole message, so that it may be acknowledged before it ran
    recorded: bool = False
    #: the message's own ``eta`` (ms), once deferrals have put theirs in its place
    eta: int | None = None
    #: says where the message comes from and asks for nothing: a task that nobody guards stays unguarded
    soft: bool = False

    def data(self) -> dict[str, Any]:
        """Return the header as plain data for a message."""
        data: dict[str, Any] = {"v": 1, "at": self.published_at}
        if self.options:
            data["options"] = dict(self.options)
        if self.source != "call":
            data["src"] = self.source
        more = {"entry": self.entry, "due": self.due, "key": self.key, "eta": self.eta}
        data.update({name: value for name, value in more.items() if value is not None})
        if self.recorded:
            data["rec"] = True
        if self.soft:
            data["soft"] = True
        if self.deferrals:
            data["deferrals"] = self.deferrals
        return data


def read(value: Any, where: str) -> Header:
    """Return the checked header of a message. Raises :class:`OptionError` naming ``where``."""
    if isinstance(value, str):  # a JSON text, as the Django admin's form field gives it
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise OptionError(
                where=where, option=None, message=f"header {HEADER!r} is not JSON: {value[:60]!r}"
            ) from None
    if not isinstance(value, Mapping):
        raise OptionError(
            where=where,
            option=None,
            message=f"header {HEADER!r} must be a mapping, not {type(value).__name__}",
        )
    if "v" not in value:
        return Header(options=check_mapping(value, where))
    if value["v"] != 1:
        raise OptionError(
            where=where,
            option="v",
            message=f"header {HEADER!r} has version {value['v']!r}, this release reads 1: upgrade the workers first",
        )
    source = value.get("src", "call")
    if source not in _SOURCES:
        raise OptionError(where=where, option="src", message=f"unknown source {str(source)[:40]!r}")
    return Header(
        options=check_mapping(value.get("options") or {}, where),
        source=source,
        published_at=_whole(value, "at", where) or 0,
        entry=_text(value, "entry", where, 200),
        due=_whole(value, "due", where),
        key=_text(value, "key", where, MAX_KEY),
        recorded=value.get("rec") is True,
        deferrals=min(_whole(value, "deferrals", where) or 0, 1000),
        eta=_whole(value, "eta", where),
        soft=value.get("soft") is True,
    )


def _whole(value: Mapping[str, Any], name: str, where: str) -> int | None:
    item = value.get(name)
    if item is None:
        return None
    if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= _LATEST:
        raise OptionError(where=where, option=name, message=f"{name}={str(item)[:40]!r} is not a time in ms")
    return item


def _text(value: Mapping[str, Any], name: str, where: str, longest: int) -> str | None:
    item = value.get(name)
    if item is None:
        return None
    if not isinstance(item, str) or not 0 < len(item) <= longest or not item.isprintable():
        raise OptionError(where=where, option=name, message=f"{name}={str(item)[:40]!r} is not a short text")
    return item
