"""Runs scripts: one call, one round trip; the driver's errors become the guard's."""

from __future__ import annotations

import itertools
import os
import re
from typing import Any, NamedTuple

from redis import exceptions

from ...core.errors import StoreConfigurationError, StoreUnavailableError, TransitionError
from . import address
from .scripts import OPERATIONS, script

_TRANSITION = re.compile(r"guard-transition (\w+) (\w+)")


class CrossedReplyError(exceptions.ConnectionError):
    """The answer belongs to another call. It is never used."""


class Answer(NamedTuple):
    """What a script answered. ``repeated``: an earlier try may have been carried out, its answer lost."""

    values: list[Any]
    repeated: bool


class Scripts:
    """The way to one namespace of one server. Safe for threads and greenlets, and on both sides of a fork: a
    child process builds a client of its own.

    An answer carries the id of its call: one that belongs to another call (a connection shared by mistake, a
    reply read late) is an error, never taken for ours.
    """

    def __init__(self, url: str, namespace: str, options: dict[str, Any]) -> None:
        self._url = url
        self._options = options
        self.masked = address.masked(url)
        # The braces make one hash slot of all keys.
        self._key = f"{{{namespace}}}"
        self._calls = itertools.count(1)
        self._built = (os.getpid(), address.client(url, options))

    @property
    def client(self) -> Any:
        """This process' client.

        No mutex, on purpose: one that another thread holds during a fork stays locked in the child for ever.
        Two threads may both build a client after a fork; one of them is dropped unused.
        """
        pid, client = self._built
        if pid != os.getpid():
            client = address.client(self._url, self._options)
            self._built = (os.getpid(), client)
        return client

    def run(self, operation: str, now: str, *args: Any) -> Answer:
        """Run one script and return its answer.

        Sent once more, on a new connection, where the first broke or did not answer in time: every operation
        may be repeated, by owner and token or by what it finds. Raises :class:`StoreUnavailableError`,
        :class:`TransitionError`.
        """
        try:
            try:
                return Answer(self._once(operation, now, args), repeated=False)
            except (exceptions.ConnectionError, exceptions.TimeoutError) as exc:
                if isinstance(exc, exceptions.AuthenticationError | exceptions.AuthorizationError):
                    raise
                # What idles in the pool is probably as dead as this one was.
                self.client.connection_pool.disconnect(inuse_connections=False)
                return Answer(self._once(operation, now, args), repeated=True)
        except exceptions.ResponseError as exc:
            moved = _TRANSITION.search(str(exc))
            if moved is None:
                raise self.unavailable(operation, exc) from exc
            raise TransitionError(key=str(args[0]), old=moved[1], new=moved[2]) from exc
        except (exceptions.RedisError, exceptions.ChildDeadlockedError, OSError) as exc:
            raise self.unavailable(operation, exc) from exc

    def _once(self, operation: str, now: str, args: tuple[Any, ...]) -> list[Any]:
        this = script(operation)
        client = self.client
        call_id = f"{os.getpid()}.{next(self._calls)}"
        # Texts as bytes: hiredis, where it is installed, packs without the connection's `encoding_errors`.
        bare = [arg.encode("utf-8", "surrogatepass") if isinstance(arg, str) else arg for arg in args]
        command = ("EVALSHA", this.sha, 1, self._key, call_id, now, *bare)
        try:
            answer = client.execute_command(*command)
        except exceptions.NoScriptError:
            # A new, restarted or failed-over server. Not EVAL: Redis 7.4 evicts what that brings.
            client.execute_command("SCRIPT LOAD", this.text)
            answer = client.execute_command(*command)
        if not isinstance(answer, list) or not answer or answer[0] != call_id.encode():
            # An exception from outside (a soft time limit, a killed greenlet) can part a request from its
            # answer, which then waits on a pooled connection for the next one to ask.
            raise CrossedReplyError("an answer to another call came; its connection is given up")
        return answer[1:]

    def load(self) -> None:
        """Load all scripts in one round trip, so that no later call has to. Raises the driver's errors."""
        pipeline = self.client.pipeline(transaction=False)
        for operation in OPERATIONS:
            pipeline.execute_command("SCRIPT LOAD", script(operation).text)
        pipeline.execute()

    def unavailable(self, operation: str, exc: BaseException) -> StoreUnavailableError:
        """Return the guard's error for one of the driver's."""
        said = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
        return StoreUnavailableError(store=self.masked, operation=operation, message=said)

    def misconfigured(self, message: str) -> StoreConfigurationError:
        """Return the error for a server that cannot keep the promises."""
        return StoreConfigurationError(f"guard_store {self.masked} {message}")

    def close(self) -> None:
        """Close this process' connections; the next call opens new ones."""
        pid, client = self._built
        if pid == os.getpid():
            client.connection_pool.disconnect()
