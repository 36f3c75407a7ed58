"""What all servers have in common: start, stop, kill, pause, restart and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from celery_guard.testing import groups
from celery_guard.testing.reaper import REAPER
from celery_guard.testing.servers.accounts import own_folder
from celery_guard.testing.servers.ports import LOOPBACK, free_port
from celery_guard.testing.waiting import ConditionNotMetError, wait_until

_START_ATTEMPTS = 3


class ServerStartError(RuntimeError):
    """A server did not start. ``kind``, ``reason`` and the end of its ``log`` say why."""

    def __init__(self, kind: str, reason: str, log: str) -> None:
        super().__init__(kind, reason, log)
        self.kind = kind
        self.reason = reason
        self.log = log

    def __str__(self) -> str:
        return f"{self.kind} did not start: {self.reason}; its log ends so:\n{self.log}"


class ServerProcess(ABC):
    """A real server as a child process on a loopback port, with all its files in a folder of its own.

    It never outlives this process, even one that is killed. As a context manager it starts and closes.
    Port and data stay the same over `stop`, `kill` and `restart`; `close` removes the data.
    """

    kind: ClassVar[str]
    ready_prompt: ClassVar[str]
    polite: ClassVar[signal.Signals] = signal.SIGTERM
    host: ClassVar[str] = LOOPBACK
    ready_timeout: ClassVar[float] = 60.0
    stop_timeout: ClassVar[float] = 30.0

    def __init__(self) -> None:
        reason = self.available()
        if reason is not None:
            raise ServerStartError(self.kind, reason, "")
        self.account = self._account()
        self.folder = own_folder(self.kind, self.account)
        REAPER.remove_later(self.folder)
        self.log_path = self.folder / "server.log"
        self.port = free_port()
        self._group: groups.ProcessGroup | None = None
        self._started_once = False
        self._starts_at = 0
        self._closed = False

    # -- what a kind of server says -------------------------------------------------------------

    @classmethod
    @abstractmethod
    def available(cls) -> str | None:
        """Return None if this server can be started here, else the reason why not, for a person to read."""

    @abstractmethod
    def argv(self) -> Sequence[str]:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether the server answers in its own protocol. Must not raise."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the server is, as Celery, kombu and SQLAlchemy write it."""

    def _account(self) -> tuple[int, int] | None:
        """As which user and group the server runs: None is that of this process."""
        return None

    def _env(self) -> Mapping[str, str]:
        """Return the server's environment variables."""
        return groups.base_environment()

    def _prepare(self) -> None:  # noqa: B027 - there may be nothing to prepare
        """Create what the server needs before its first start."""

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the server, unless it runs, and wait until it answers. `ServerStartError` if it cannot."""
        if self._closed:
            raise ServerStartError(self.kind, "it is closed, and its data are removed", "")
        if self.running:
            return self
        if self._group is not None:
            self._group.sweep()
        failure: str | None = None
        # Somebody else may take a port between our finding it free and the server's binding it. Once the
        # server has had it, the port is part of its address and no other will do.
        for _ in range(1 if self._started_once else _START_ATTEMPTS):
            if not self._started_once:
                self._prepare()
            self._spawn()
            failure = self._wait_ready()
            if failure is None:
                self._started_once = True
                return self
            self._end_all()
            if not self._started_once:
                self.port = free_port()
        raise ServerStartError(self.kind, failure or "", self.log_tail())

    def _spawn(self) -> None:
        self._starts_at = len(self.log())
        self._group = groups.ProcessGroup(
            self.argv(),
            log_path=self.log_path,
            cwd=self.folder,
            env=self._env(),
            account=self.account,
            polite=self.polite,
        )

    def _wait_ready(self) -> str | None:
        """Return None once the server answers, else why it does not."""
        try:
            wait_until(lambda: not self.running or self._ready(), self.ready_timeout, "waiting for an answer")
        except ConditionNotMetError as error:
            return str(error)
        return None if self.running else f"it ended with {self._the_group.returncode}"

    def _ready(self) -> bool:
        # Its log is asked as well: on a port that a server of another test run took, the answer is not ours.
        return self.ready_prompt in self.log()[self._starts_at :] and self.answers()

    def _end_all(self) -> None:
        if self._group is not None:
            self._group.kill()

    @property
    def _the_group(self) -> groups.ProcessGroup:
        if self._group is None:
            raise RuntimeError(f"{self.kind} was not started")
        return self._group

    @property
    def group(self) -> groups.ProcessGroup | None:
        """The server's processes as of the last start, None before the first."""
        return self._group

    @property
    def running(self) -> bool:
        """Whether the server's process lives. A paused one does."""
        return self._group is not None and self._group.running

    @property
    def pid(self) -> int:
        """The id of the process that was started last."""
        return self._the_group.pid

    def stop(self) -> None:
        """Stop the server as its operator would (it may save its data), and return when it has ended."""
        if self._group is not None:
            self._group.stop(self.stop_timeout)

    def kill(self) -> None:
        """Kill the server and all its processes (SIGKILL), and return when all are gone."""
        self._end_all()

    def pause(self) -> None:
        """Freeze the server and all its processes (SIGSTOP). Connections stay open, nothing answers."""
        self._the_group.pause()

    def resume(self) -> None:
        """Let a paused server go on."""
        self._the_group.resume()

    def restart(self) -> Self:
        """Stop the server if it runs, start it on the same port with the same data, wait until it answers."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End the server and remove its folder. Can be called again."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        self._end_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} in {self.folder}, {'running' if self.running else 'down'}>"

    # -- log ------------------------------------------------------------------------------------

    def log(self) -> str:
        """Return all that the server said, over all starts."""
        return groups.read_log(self.log_path)

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the log."""
        return groups.tail(self.log(), lines)

    def _write(self, name: str, text: str) -> None:
        """Write a file in the server's folder, readable by the account it runs as, whatever the umask."""
        path = self.folder / name
        path.write_text(text)
        if self.account is not None:
            os.chown(path, *self.account)

    def _subfolder(self, name: str) -> Path:
        """Return a folder inside the server's own, that belongs to the account it runs as."""
        path = self.folder / name
        path.mkdir(mode=0o700, exist_ok=True)
        if self.account is not None:
            os.chown(path, *self.account)
        return path
