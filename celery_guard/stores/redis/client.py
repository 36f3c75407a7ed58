"""One connection pool a process, made from the store's URL; the driver's errors become the guard's."""

from __future__ import annotations

import os
import threading
import uuid
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import redis
from redis.exceptions import (
    AuthenticationError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.sentinel import Sentinel

from ...core.errors import StoreConfigurationError, StoreUnavailableError, TransitionError
from .scripts import script

_DEFAULTS: dict[str, Any] = {"socket_timeout": 5.0, "socket_connect_timeout": 5.0, "health_check_interval": 30}


def masked(url: str) -> str:
    """Return the URL without its password and query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def connect(url: str) -> Any:
    """Return a client for ``redis://``, ``rediss://``, ``unix://`` or
    ``sentinel://[:password@]host:port[;host:port]/SERVICE?db=0``."""
    parts = urlsplit(url)
    if parts.scheme == "redis+socket":
        url = "unix" + url.removeprefix("redis+socket")
    if parts.scheme != "sentinel":
        try:
            return redis.Redis.from_url(url, **_DEFAULTS)
        except ValueError as exc:
            raise StoreConfigurationError(f"guard_store {masked(url)} cannot be read: {exc}") from exc
    credentials, _, hosts = parts.netloc.rpartition("@")
    service = parts.path.strip("/")
    if not service:
        raise StoreConfigurationError("guard_store sentinel://host:port;host:port/SERVICE?db=0 names no service")
    nodes = []
    for host in hosts.split(";"):
        name, _, port = host.partition(":")
        nodes.append((name, int(port or 26379)))
    query = dict(parse_qsl(parts.query))
    options: dict[str, Any] = {**_DEFAULTS, "db": int(query.get("db", 0))}
    if credentials:
        options["password"] = credentials.rpartition(":")[2]
    return Sentinel(nodes, sentinel_kwargs={"socket_timeout": 5.0}).master_for(service, **options)


class Scripts:
    """Runs scripts, in one round trip each. Made anew after a fork; safe for threads.

    An answer carries the id of its call: one that belongs to another call (a connection shared by mistake, a
    reply read late) is an error, never taken for ours.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self._url = url
        self._key = f"{{{namespace}}}"
        self._mutex = threading.Lock()
        self._client: Any = None
        self._pid = 0

    @property
    def client(self) -> Any:
        """This process' client."""
        if self._client is None or self._pid != os.getpid():
            with self._mutex:
                if self._client is None or self._pid != os.getpid():
                    self._client = connect(self._url)
                    self._pid = os.getpid()
        return self._client

    def run(self, operation: str, *args: Any) -> Any:
        """Run one script and return its answer.

        Sent once more where the connection broke: every operation may be repeated, begin and finish by their
        owner and token.
        """
        call_id = uuid.uuid4().hex[:12]
        try:
            try:
                answer = self._evaluate(operation, call_id, args)
            except (redis.ConnectionError, redis.TimeoutError) as exc:
                if isinstance(exc, AuthenticationError | redis.BusyLoadingError | redis.TimeoutError):
                    raise
                answer = self._evaluate(operation, call_id, args)
        except ResponseError as exc:
            if "guard-transition" in str(exc):
                words = str(exc).partition("guard-transition ")[2].split()
                raise TransitionError(key=str(args[0])[:200], old=words[0], new=words[1]) from exc
            raise self.unavailable(operation, exc) from exc
        except (RedisError, OSError) as exc:
            raise self.unavailable(operation, exc) from exc
        if not answer or _text(answer[0]) != call_id:
            self.client.connection_pool.disconnect()
            raise self.unavailable(operation, RuntimeError("the answer belongs to another call"))
        return answer[1:]

    def _evaluate(self, operation: str, call_id: str, args: tuple[Any, ...]) -> Any:
        this = script(operation)
        try:
            return self.client.evalsha(this.sha, 1, self._key, call_id, *args)
        except NoScriptError:
            return self.client.eval(this.text, 1, self._key, call_id, *args)

    def unavailable(self, operation: str, exc: BaseException) -> StoreUnavailableError:
        """Return the guard's error for one of the driver's."""
        return StoreUnavailableError(store=masked(self._url), operation=operation, message=str(exc) or repr(exc))

    def close(self) -> None:
        """Close this process' connections."""
        client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            client.close()
            client.connection_pool.disconnect()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
