"""What task bodies say, for tests to read: one JSON object a line, written by many processes at once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery_guard.testing.waiting import wait_until

ENV = "CELERY_GUARD_BODY_LOG"
Record = dict[str, Any]


class BodyLog:
    """An append-only file of records. No record is lost, torn or mixed with another.

    A record is one ``write`` to a file opened with ``O_APPEND``: it survives a SIGKILL right after.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def from_env(cls) -> BodyLog:
        """Return the log that the environment of this process names (see `env`). For task modules."""
        return cls(os.environ[ENV])

    @property
    def env(self) -> dict[str, str]:
        """What to add to a worker's environment, so that `from_env` finds this log there."""
        return {ENV: str(self.path)}

    def write(self, event: str, **facts: Any) -> None:
        """Append a record: the event, the facts, ``at`` (this machine's clock), ``pid``, ``ppid``."""
        record = {"event": event, "at": time.time(), "pid": os.getpid(), "ppid": os.getppid(), **facts}
        line = json.dumps(record, default=str).encode() + b"\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            written = os.write(handle, line)
        finally:
            os.close(handle)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of a record fitted into {self.path}")

    def read(self, event: str | None = None, **facts: Any) -> list[Record]:
        """Return the records so far, in the order written: all, or those with this event and these facts."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind("\n") + 1]
        records: list[Record] = [json.loads(line) for line in whole.splitlines()]
        wanted = facts if event is None else {"event": event, **facts}
        return [record for record in records if all(record.get(k) == v for k, v in wanted.items())]

    def count(self, event: str, **facts: Any) -> int:
        """Return how many records have this event and these facts."""
        return len(self.read(event, **facts))

    def wait_for(self, event: str, *, count: int = 1, timeout: float = 30.0, **facts: Any) -> list[Record]:
        """Wait for ``count`` such records or more and return them; `ConditionNotMetError` if too few come."""

        def enough() -> list[Record]:
            found = self.read(event, **facts)
            return found if len(found) >= count else []

        condition: Callable[[], list[Record]] = enough
        return wait_until(condition, timeout, f"{count} x {event!r} {facts or ''} in {self.path.name}")
