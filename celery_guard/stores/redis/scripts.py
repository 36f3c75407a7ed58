"""The Lua scripts: each operation's file and the parts it names in its first line, joined to one text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

OPERATIONS = (
    "begin",
    "checkpoint",
    "counts",
    "end",
    "executions",
    "finish",
    "get",
    "lose",
    "now",
    "purge",
    "renew",
    "reserve",
    "revoke",
    "sweep",
    "verify",
    "withdraw",
)


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script's text and the digest by which the server knows it."""

    text: str
    sha: str


@cache
def script(operation: str) -> Script:
    """Return the script of an operation (a file of ``lua/``)."""
    folder = files(__package__) / "lua"
    body = (folder / f"{operation}.lua").read_text(encoding="utf-8")
    first = body.partition("\n")[0]
    parts = first.removeprefix("-- with:").split() if first.startswith("-- with:") else []
    text = "\n".join([*((folder / f"{part}.lua").read_text(encoding="utf-8") for part in parts), body])
    return Script(text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
