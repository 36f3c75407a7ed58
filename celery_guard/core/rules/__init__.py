"""The rules of an execution's life, written once for every store that runs Python under its own transaction.

A store gives a :class:`Unit` (what one atomic step can see and change), the rules decide. The Redis store has
the same rules in Lua; the conformance suite holds the two together.

Ownership lives in one place, the execution record (owner, token, expiry). A lock names the execution that
holds it and counts the tokens. Those that wait stand in the lock's queue, ordered by when they were published;
whoever is at its head may take a free lock, nobody else may while the queue is not empty.
"""

from __future__ import annotations

from .begin import begin
from .held import checkpoint, finish, renew, verify
from .identity import reserve, withdraw
from .outside import attend, end, lose, revoke
from .record import Lock, Record, Unit
from .steps import ENDINGS, LOOK_AGAIN, MAX_NOTICES, RESEND, RESEND_MAX, move

__all__ = [
    "ENDINGS",
    "LOOK_AGAIN",
    "MAX_NOTICES",
    "RESEND",
    "RESEND_MAX",
    "Lock",
    "Record",
    "Unit",
    "attend",
    "begin",
    "checkpoint",
    "end",
    "finish",
    "lose",
    "move",
    "renew",
    "reserve",
    "revoke",
    "verify",
    "withdraw",
]
