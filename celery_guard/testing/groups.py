"""One child process with all below it, its log, and the signals a test sends it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from celery_guard.testing import proctree
from celery_guard.testing.reaper import REAPER
from celery_guard.testing.waiting import wait_until


class ProcessGroup:
    """A process in a session of its own, with all below it.

    Output goes to the end of ``log_path``. The group never outlives this process (see `reaper`). ``account``
    is the user and group to run as (of use to root only); ``polite`` the signal that asks it to end.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log_path: Path,
        cwd: Path,
        env: Mapping[str, str],
        account: tuple[int, int] | None = None,
        polite: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.argv = list(argv)
        self.log_path = log_path
        self.polite = polite
        self._swept = False
        user, group = account or (None, None)
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=None if account is None else [],
            )
        REAPER.watch(self.pid, polite=polite)

    @property
    def pid(self) -> int:
        """The id of the process that was started, which is also that of its group and session."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """What the process ended with (minus the signal's number if killed), or None while it lives."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        """Whether the process lives. A stopped one does."""
        return self.returncode is None

    def descendants(self) -> list[int]:
        """Return the ids of the living processes below."""
        return proctree.descendants(self.pid) if self.running else []

    def signal(self, signum: int) -> None:
        """Send a signal to the process alone. Nothing happens if it has ended."""
        if self.running:
            proctree.send(self.pid, signum)

    def pause(self) -> None:
        """Stop the process and all below it (SIGSTOP)."""
        if self.running:
            proctree.stop_tree(self.pid)

    def resume(self) -> None:
        """Let the process and all below it go on (SIGCONT)."""
        if self.running:
            proctree.continue_tree(self.pid)

    def kill(self) -> None:
        """Kill the process and all below it (SIGKILL), and return when all are gone."""
        if self.running:
            found = proctree.kill_tree(self.pid)
            self._process.wait()
            wait_until(lambda: not set(found) & set(proctree.living()), 30, f"all of {self.argv[0]} to end")
        self.sweep()

    def sweep(self) -> None:
        """Kill what a process that has ended left in its group. Nothing happens while it lives."""
        if self.running or self._swept:
            return
        self._swept = True
        REAPER.forget(self.pid)
        # The kernel hands out no process id that is still the name of a group. So if somebody runs under
        # ours now, our group was empty before, and the group of that name is not ours to kill.
        if not proctree.alive(self.pid) and proctree.send_group(self.pid, signal.SIGKILL):
            wait_until(lambda: not proctree.group_members(self.pid), 30, f"all of {self.argv[0]} to end")

    def wait(self, timeout: float) -> int:
        """Wait until the process ends by itself and return its code; `ConditionNotMetError` if not."""
        wait_until(lambda: not self.running, timeout, f"{self.argv[0]} (pid {self.pid}) to end")
        assert self.returncode is not None
        return self.returncode

    def stop(self, timeout: float) -> int:
        """Ask the process to end, paused or not; kill all after ``timeout`` seconds. Return its code."""
        self.resume()
        self.signal(self.polite)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        self.sweep()
        assert self.returncode is not None
        return self.returncode

    def log(self) -> str:
        """Return everything that was written to the log so far."""
        return read_log(self.log_path)


def read_log(path: Path) -> str:
    """Return a log's text, empty if there is none."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def tail(text: str, lines: int) -> str:
    """Return the last lines of a text."""
    return "\n".join(text.splitlines()[-lines:])


_PASSED_ON = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONHASHSEED",
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT",
)  # fmt: skip


def base_environment() -> dict[str, str]:
    """Return what a child process gets of this one's environment: where programs and modules are, no more.

    A ``DJANGO_SETTINGS_MODULE`` or ``CELERY_...`` that the test runner has would change what a worker does.
    Coverage's variables go along.
    """
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name.startswith(("COVERAGE_", "COV_"))}
    return kept
