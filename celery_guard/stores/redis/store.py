"""The Redis store: every method is one Lua script, one round trip, one atomic step.

The rules are those of :mod:`celery_guard.core.rules`, function by function, in ``lua/``. All keys of a
namespace share one hash tag. Redis Cluster is refused: its slots would spread what one step must see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.clock import Clock
from ...core.contract import (
    Begun,
    Done,
    Execution,
    Finish,
    Finishing,
    Lease,
    Mismatch,
    Refused,
    Reserved,
    Standing,
    Sweep,
    Trigger,
)
from ...core.errors import StoreConfigurationError, TransitionError
from ...core.rules import ENDINGS
from ...core.states import State
from . import checks
from .client import Answer, Scripts
from .codec import FIELDS, answer, begun, dispatches, execution, optional, text, trigger_args

_PAGE = 200


class RedisStore:
    """A :class:`~celery_guard.core.contract.Store` on Redis 6.2 or newer, or Valkey.

    May be shared by threads and greenlets, and used on both sides of a fork. A call whose connection breaks
    is repeated once, so it takes up to twice ``socket_timeout``.

    :param url: see :mod:`celery_guard.stores.redis.address`.
    :param namespace: what all keys start with, in braces.
    :param clock: replaces the server's clock, for tests.
    :param options: of redis-py's connections; the URL wins.
    """

    shared = True

    def __init__(
        self, url: str, *, namespace: str = "celery_guard", clock: Clock | None = None, **options: Any
    ) -> None:
        if not namespace or set(namespace) & set("{}"):
            raise StoreConfigurationError(f"namespace {namespace!r} must be a text without braces")
        self.url = url
        self._clock = clock
        self._scripts = Scripts(url, namespace, options)

    def __repr__(self) -> str:
        return f"<RedisStore {self._scripts.masked}>"

    def _ask(self, operation: str, *args: Any) -> Answer:
        now = "" if self._clock is None else str(int(self._clock() * 1000))
        return self._scripts.run(operation, now, *args)

    def _run(self, operation: str, *args: Any) -> Any:
        return self._ask(operation, *args).values

    def now(self) -> int:
        return int(self._run("now")[0])

    def check(self) -> Sequence[str]:
        return checks.check(self._scripts)

    def reserve(self, trigger: Trigger, *, resend_after: int) -> Reserved | Standing | Mismatch:
        (found,), repeated = self._ask("reserve", *trigger_args(trigger), resend_after)
        kind = text(found[0])
        if kind == "reserved":
            return Reserved()
        if kind == "mismatch":
            return Mismatch(trigger_id=text(found[1]))
        standing = Standing(trigger_id=text(found[1]), state=State(text(found[2])))
        if repeated and standing == Standing(trigger_id=trigger.trigger_id, state=State.PENDING):
            return Reserved()  # what stands there is what the first try wrote
        return standing

    def withdraw(self, key: str, trigger_id: str) -> bool:
        (found,), repeated = self._ask("withdraw", key, trigger_id)
        return text(found) == "withdrawn" or (repeated and text(found) in ("missing", "other"))

    def begin(self, trigger: Trigger, *, owner: str, retries: int = 0) -> Begun:
        return begun(self._run("begin", *trigger_args(trigger), owner, retries)[0])

    def renew(self, leases: Sequence[Lease]) -> Sequence[Done | Refused]:
        if not leases:
            return []
        args = [item for lease in leases for item in (lease.key, lease.owner, lease.token)]
        return [answer(item) for item in self._run("renew", *args)[0]]

    def finish(self, finish: Finish) -> Done | Refused:
        lease = finish.lease
        if finish.state not in Finishing:
            raise TransitionError(key=lease.key, old=str(State.RUNNING), new=str(finish.state))
        return answer(
            self._run(
                "finish",
                lease.key,
                lease.lock_key,
                lease.owner,
                lease.token,
                str(finish.state),
                finish.reason,
                optional(finish.result),
                optional(finish.message),
                finish.retries,
                finish.delay,
            )[0]
        )

    def checkpoint(self, lease: Lease, data: str) -> Done | Refused:
        return answer(self._run("checkpoint", lease.key, lease.owner, lease.token, data)[0])

    def verify(self, lease: Lease) -> Done | Refused:
        return answer(self._run("verify", lease.key, lease.owner, lease.token)[0])

    def lose(self, key: str, delivery: str, reason: str) -> Done | Refused:
        return _own_work(self._ask("lose", key, delivery, reason), State.LOST, State.DEAD)

    def end(
        self, trigger: Trigger, *, state: State, reason: str, delivery: str | None = None, retries: int = 0
    ) -> Done | Refused:
        if state not in ENDINGS:
            raise TransitionError(key=trigger.key, old="any state, from outside,", new=str(state))
        ending = (str(state), reason, optional(delivery), retries)
        return _own_work(self._ask("end", *trigger_args(trigger), *ending), state)

    def revoke(self, key: str, reason: str) -> Done | Refused:
        return _own_work(self._ask("revoke", key, reason), State.REVOKED)

    def sweep(self, dispatcher: str, *, ttl: int, limit: int = 100) -> Sweep:
        leader, sent, lost, more = self._run("sweep", dispatcher, ttl, limit)
        if not int(leader):
            return Sweep(leader=False)
        gone = [text(key) for key in lost]
        return Sweep(leader=True, dispatches=dispatches(sent), lost=gone, more=bool(int(more)))

    def get(self, key: str) -> Execution | None:
        found = self._run("get", key, *FIELDS)[0]
        return execution(key, found) if found else None

    def executions(self, *, task: str | None = None, limit: int = 1000) -> Iterator[Execution]:
        start = given = 0
        while given < limit:
            seen, found = self._run("executions", optional(task), start, _PAGE, *FIELDS)
            for key, fields in found[: limit - given]:
                given += 1
                yield execution(text(key), fields)
            start += int(seen)
            if int(seen) < _PAGE:
                return

    def counts(self) -> Mapping[tuple[str, State], int]:
        flat = self._run("counts")[0]
        counted: dict[tuple[str, State], int] = {}
        for name, number in zip(flat[::2], flat[1::2], strict=True):
            state, _, task = text(name).partition(":")
            counted[(task, State(state))] = int(number)
        return counted

    def purge(self, limit: int = 1000) -> int:
        return int(self._run("purge", limit)[0])

    def close(self) -> None:
        self._scripts.close()


def _own_work(said: Answer, *states: State) -> Done | Refused:
    """The answer; or where the call was repeated and finds what its first try has done: that."""
    found = answer(said.values[0])
    if said.repeated and isinstance(found, Refused) and found.state in states:
        return Done(state=found.state)
    return found
