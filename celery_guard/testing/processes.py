"""Real Celery workers and beats as child processes, from an app module, and the signals a test sends them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from celery_guard.testing.bodylog import BodyLog
from celery_guard.testing.groups import ProcessGroup, base_environment, read_log, tail
from celery_guard.testing.reaper import REAPER
from celery_guard.testing.waiting import ConditionNotMetError, wait_until

__all__ = [
    "BeatProcess",
    "BodyLog",
    "CeleryProcess",
    "ConditionNotMetError",
    "ProcessEndedError",
    "WorkerProcess",
    "wait_until",
]

QUIET = ("--without-mingle", "--without-gossip", "--without-heartbeat")
"""Worker options that leave out what a test does not need: a start takes half the time."""

_ROOT = Path(__file__).resolve().parents[2]


class ProcessEndedError(AssertionError):
    """A process ended that should have gone on. ``returncode`` and ``log`` say how."""

    def __init__(self, name: str, returncode: int | None, log: str) -> None:
        super().__init__(name, returncode, log)
        self.name = name
        self.returncode = returncode
        self.log = log

    def __str__(self) -> str:
        return f"{self.name} ended with {self.returncode}; its log ends so:\n{self.log}"


class CeleryProcess:
    """A ``celery -A APP ...`` process in a session of its own: started, watched, signalled, never orphaned.

    ``env`` is added to `base_environment`. The log is ``FOLDER/NODE.log``; without ``folder``, in a
    temporary one that is removed at the end. As a context manager it starts, waits until ready, and at the
    end kills what is left.
    """

    command: ClassVar[str]
    ready_prompt: ClassVar[str]

    def __init__(
        self,
        *,
        app: str,
        node: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        log_level: str = "INFO",
        args: Sequence[str] = (),
        python: str = sys.executable,
    ) -> None:
        self.app = app
        self.node = node
        self.args = tuple(args)
        self.log_level = log_level
        self.python = python
        self.env = dict(env or {})
        self.cwd = Path(cwd or Path.cwd())
        self._own_folder = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix="guard-celery-"))
        if self._own_folder:
            REAPER.remove_later(self.folder)
        self.log_path = self.folder / f"{node}.log"
        self._group: ProcessGroup | None = None
        self._starts_at = 0

    def argv(self) -> list[str]:
        """Return the command line."""
        return [self.python, "-m", "celery", "-A", self.app, self.command, "-l", self.log_level, *self.args]

    def start(self) -> Self:
        """Start the process, also once more after it has ended. Does not wait."""
        if self._group is not None:
            if self._group.running:
                raise RuntimeError(f"{self.node} runs already; end it before starting it again")
            self._group.sweep()
        self._starts_at = len(self.log)
        self._group = ProcessGroup(self.argv(), log_path=self.log_path, cwd=self.cwd, env=self._environment())
        return self

    def _environment(self) -> dict[str, str]:
        env = base_environment() | {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"} | self.env
        # The project may be tested from its checkout, where the test runner alone can import it.
        path = [str(self.cwd), env.get("PYTHONPATH", ""), str(_ROOT)]
        return env | {"PYTHONPATH": os.pathsep.join(part for part in path if part)}

    @property
    def group(self) -> ProcessGroup:
        """The process of the last `start`."""
        if self._group is None:
            raise RuntimeError(f"{self.node} was not started")
        return self._group

    @property
    def pid(self) -> int:
        """The id of the main process."""
        return self.group.pid

    @property
    def running(self) -> bool:
        """Whether the main process lives. A stopped one does."""
        return self._group is not None and self._group.running

    @property
    def returncode(self) -> int | None:
        """What the main process ended with, or None while it lives."""
        return self.group.returncode

    @property
    def log(self) -> str:
        """The log so far, over all starts."""
        return read_log(self.log_path)

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the log."""
        return tail(self.log, lines)

    def child_pids(self) -> list[int]:
        """Return the ids of the living processes below the main one."""
        return self.group.descendants()

    def wait_ready(self, timeout: float = 60.0) -> Self:
        """Wait until this start has said that it is ready. `ProcessEndedError` if it ends instead."""
        return self.wait_for_log(self.ready_prompt, timeout)

    def wait_for_log(self, text: str, timeout: float = 60.0) -> Self:
        """Wait until ``text`` is in the log of this start. `ProcessEndedError` if the process ends before."""

        def said() -> bool:
            ended = not self.running  # before reading: what it said last is then in the log
            if text in self.log[self._starts_at :]:
                return True
            if ended:
                raise ProcessEndedError(self.node, self.returncode, self.log_tail())
            return False

        wait_until(said, timeout, f"{self.node} to say {text!r}")
        return self

    def sigkill_group(self) -> None:
        """Kill the main process and all below it (SIGKILL), and return when all are gone."""
        self.group.kill()

    def sigkill_parent(self) -> None:
        """Kill the main process alone (SIGKILL), and return when it is gone. Its children see it or not."""
        self.group.signal(signal.SIGKILL)
        self.group.wait(30)

    def sigstop_group(self) -> None:
        """Stop the main process and all below it (SIGSTOP)."""
        self.group.pause()

    def sigcont_group(self) -> None:
        """Let the main process and all below it go on (SIGCONT)."""
        self.group.resume()

    def send_signal(self, signum: int) -> None:
        """Send a signal to the main process alone."""
        self.group.signal(signum)

    def warm_shutdown(self) -> None:
        """Ask the main process to end after what it does (SIGTERM). Does not wait: see `wait`."""
        self.group.signal(signal.SIGTERM)

    def wait(self, timeout: float = 60.0) -> int:
        """Wait until the main process ends by itself and return its code; `ConditionNotMetError` if not."""
        return self.group.wait(timeout)

    def close(self) -> None:
        """Kill what is left. A temporary folder is removed. Can be called again."""
        if self._group is not None:
            self._group.kill()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return (self if self.running else self.start()).wait_ready()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class WorkerProcess(CeleryProcess):
    """A worker. Its name is ``NODE@lab``; ``queues`` and further ``args`` are Celery's own.

    Without ``args`` it starts with `QUIET`; give your own, also an empty list, to have mingle and gossip.
    """

    command = "worker"
    ready_prompt = " ready."

    def __init__(
        self,
        *,
        app: str,
        node: str = "w1",
        pool: str = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        log_level: str = "INFO",
        args: Sequence[str] = QUIET,
        python: str = sys.executable,
    ) -> None:
        super().__init__(
            app=app, node=node, env=env, cwd=cwd, folder=folder, log_level=log_level, args=args, python=python
        )
        self.pool = pool
        self.concurrency = concurrency
        self.queues = tuple(queues)

    @property
    def hostname(self) -> str:
        """The worker's name, as ``app.control`` and events use it."""
        return f"{self.node}@lab"

    def argv(self) -> list[str]:
        queues = ["-Q", ",".join(self.queues)] if self.queues else []
        own = ["-n", self.hostname, "-P", self.pool, "-c", str(self.concurrency), *queues]
        return [*super().argv(), *own]

    def cold_shutdown(self) -> None:
        """Tell the main process to end at once (SIGQUIT). Does not wait: see `wait`."""
        self.send_signal(signal.SIGQUIT)


class BeatProcess(CeleryProcess):
    """A beat, with its schedule file in the folder of its log. ``scheduler`` is a scheduler class's path."""

    command = "beat"
    ready_prompt = "beat: Starting..."

    def __init__(
        self,
        *,
        app: str,
        node: str = "beat",
        scheduler: str | None = None,
        max_interval: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        log_level: str = "INFO",
        args: Sequence[str] = (),
        python: str = sys.executable,
    ) -> None:
        super().__init__(
            app=app, node=node, env=env, cwd=cwd, folder=folder, log_level=log_level, args=args, python=python
        )
        self.scheduler = scheduler
        self.max_interval = max_interval

    def argv(self) -> list[str]:
        scheduler = ["-S", self.scheduler] if self.scheduler else []
        interval = ["--max-interval", str(self.max_interval)] if self.max_interval is not None else []
        schedule = ["-s", str(self.folder / f"{self.node}-schedule"), "--pidfile="]
        return [*super().argv(), *schedule, *scheduler, *interval]
