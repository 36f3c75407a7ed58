"""The Redis store: every method is one Lua script, one round trip, one atomic step.

The rules are those of :mod:`celery_guard.core.rules`, function by function, in ``lua/``. All keys of a namespace
share one hash tag. Redis Cluster is refused: its clients and slots would spread what one step must see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redis.exceptions import AuthenticationError, RedisError

from ...core.clock import Clock
from ...core.contract import Begun, Done, Execution, Finish, Lease, Mismatch, Refused, Reserved, Standing, Sweep, Trigger
from ...core.errors import StoreConfigurationError
from ...core.states import State
from .client import Scripts, masked
from .codec import FIELDS, answer, begun, dispatches, execution, optional, text, trigger_args

_PAGE = 200


class RedisStore:
    """A :class:`~celery_guard.core.contract.Store` on Redis 6.2 or newer, or Valkey."""

    shared = True

    def __init__(self, url: str, *, namespace: str = "celery_guard", clock: Clock | None = None) -> None:
        self.url = url
        self._clock = clock
        self._scripts = Scripts(url, namespace)

    def __repr__(self) -> str:
        return f"<RedisStore {masked(self.url)}>"

    def _run(self, operation: str, *args: Any) -> Any:
        now = "" if self._clock is None else str(int(self._clock() * 1000))
        return self._scripts.run(operation, now, *args)

    def now(self) -> int:
        return int(self._run("now")[0])

    def check(self) -> Sequence[str]:
        client = self._scripts.client
        try:
            info = client.info()
        except AuthenticationError as exc:
            raise StoreConfigurationError(f"guard_store {masked(self.url)} refuses the password: {exc}") from exc
        except (RedisError, OSError) as exc:
            raise self._scripts.unavailable("check", exc) from exc
        if int(info.get("cluster_enabled", 0)):
            raise StoreConfigurationError(
                f"guard_store {masked(self.url)} is a node of a Redis Cluster, which is not supported: use a single "
                "primary, or sentinel://"
            )
        warnings = []
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction":
            warnings.append(
                f"guard store {masked(self.url)}: maxmemory-policy is {policy}, so Redis may drop locks and "
                "executions when memory is short; set it to noeviction or use another server"
            )
        if not int(info.get("aof_enabled", 0)) and self._no_snapshots(client):
            warnings.append(
                f"guard store {masked(self.url)}: nothing is persisted (appendonly no, no save points), so a restart "
                "forgets what ran; set appendonly yes"
            )
        return warnings

    @staticmethod
    def _no_snapshots(client: Any) -> bool:
        try:
            return not dict(client.config_get("save")).get("save")
        except (RedisError, OSError):  # CONFIG is forbidden on hosted servers
            return False

    def reserve(self, trigger: Trigger, *, resend_after: int) -> Reserved | Standing | Mismatch:
        found = self._run("reserve", *trigger_args(trigger), resend_after)[0]
        kind = text(found[0])
        if kind == "reserved":
            return Reserved()
        if kind == "standing":
            return Standing(trigger_id=text(found[1]), state=State(text(found[2])))
        return Mismatch(trigger_id=text(found[1]))

    def withdraw(self, key: str, trigger_id: str) -> bool:
        return text(self._run("withdraw", key, trigger_id)[0]) == "withdrawn"

    def begin(self, trigger: Trigger, *, owner: str, retries: int = 0) -> Begun:
        return begun(self._run("begin", *trigger_args(trigger), owner, retries)[0])

    def renew(self, leases: Sequence[Lease]) -> Sequence[Done | Refused]:
        if not leases:
            return []
        args = [item for lease in leases for item in (lease.key, lease.owner, lease.token)]
        return [answer(item) for item in self._run("renew", *args)[0]]

    def finish(self, finish: Finish) -> Done | Refused:
        lease = finish.lease
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
        return answer(self._run("lose", key, delivery, reason)[0])

    def end(
        self, trigger: Trigger, *, state: State, reason: str, delivery: str | None = None, retries: int = 0
    ) -> Done | Refused:
        return answer(
            self._run("end", *trigger_args(trigger), str(state), reason, optional(delivery), retries)[0]
        )

    def revoke(self, key: str, reason: str) -> Done | Refused:
        return answer(self._run("revoke", key, reason)[0])

    def sweep(self, dispatcher: str, *, ttl: int, limit: int = 100) -> Sweep:
        leader, sent, lost = self._run("sweep", dispatcher, ttl, limit)
        if not int(leader):
            return Sweep(leader=False)
        return Sweep(leader=True, dispatches=dispatches(sent), lost=[text(key) for key in lost])

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
