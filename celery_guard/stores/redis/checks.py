"""What is asked of a server at start-up, before it is trusted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from redis import exceptions

from .client import Scripts

_OLDEST = (6, 2)
_KEPT_OUT = re.compile(r"WRONGPASS|NOAUTH|NOPERM|DENIED|invalid (username|password|DB)|DB index", re.I)


def check(scripts: Scripts) -> list[str]:
    """Connect, load the scripts, and return warnings about a set-up that may lose data.

    Raises :class:`~celery_guard.core.errors.StoreConfigurationError` for a server that cannot keep the
    promises or does not let us in, :class:`~celery_guard.core.errors.StoreUnavailableError` for one that
    does not answer.
    """
    try:
        info: Mapping[str, Any] = scripts.client.info()
        _refuse(scripts, info)
        scripts.load()
        snapshots = _snapshots(scripts)
    except (exceptions.RedisError, OSError) as exc:
        kept_out = isinstance(exc, exceptions.AuthenticationError | exceptions.NoPermissionError)
        if kept_out or _KEPT_OUT.search(str(exc)):
            raise scripts.misconfigured(f"does not let us in: {exc}") from exc
        raise scripts.unavailable("check", exc) from exc
    found = [*_eviction(info), *_persistence(info, snapshots)]
    return [f"guard store {scripts.masked}: {warning}" for warning in found]


def _refuse(scripts: Scripts, info: Mapping[str, Any]) -> None:
    version = str(info.get("redis_version", "0"))
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < _OLDEST:
        raise scripts.misconfigured(f"is of version {version}; Redis 6.2 or newer, or Valkey, is needed")
    if int(info.get("cluster_enabled", 0)):
        raise scripts.misconfigured(
            "is a node of a Redis Cluster, which is not supported: use a single primary, or "
            "sentinel://host:port;host:port/SERVICE"
        )
    if info.get("role") in ("slave", "replica"):
        raise scripts.misconfigured("is a read-only replica: name its primary, or use sentinel://")


def _snapshots(scripts: Scripts) -> str | None:
    """The setting ``save``, None where the server keeps it to itself, as hosted ones do."""
    try:
        return str(scripts.client.config_get("save").get("save", ""))
    except exceptions.ResponseError:
        return None


def _eviction(info: Mapping[str, Any]) -> list[str]:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        return []
    when = "when memory is short" if int(info.get("maxmemory", 0)) else "once maxmemory is set"
    text = (
        f"maxmemory-policy is {policy}, so the server may drop locks and executions {when}, and then work is "
        "run twice or forgotten; set it to noeviction or use another server"
    )
    return [text]


def _persistence(info: Mapping[str, Any], snapshots: str | None) -> list[str]:
    if int(info.get("aof_enabled", 0)) or snapshots:
        return []
    forgets = "a restart forgets what waits, runs and ran; set appendonly yes"
    if snapshots is None:
        return [f"appendonly is off and CONFIG is forbidden: unless the server saves snapshots, {forgets}"]
    return [f"nothing is persisted (appendonly no, no save points), so {forgets}"]
