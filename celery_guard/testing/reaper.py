"""A watchman: whatever happens to the test process, no server or worker of it stays behind.

It is a process of its own that reads commands from a pipe. When the pipe closes (the test process ended, or
was killed with SIGKILL), it ends everything that is still on its list and removes the folders. A death
signal (``PR_SET_PDEATHSIG``) would not do: it fires when the *thread* that started a child ends, is lost
when a child changes its user, and exists on Linux only.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from celery_guard.testing.proctree import alive, continue_tree, kill_tree, send
from celery_guard.testing.waiting import ConditionNotMetError, wait_until

_GRACE = 5.0


class Reaper:
    """This process's watchman, started at the first use. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def watch(self, pid: int, *, polite: int = signal.SIGTERM) -> None:
        """End the process ``pid`` and all below it when this process is gone, politely first."""
        self._tell({"watch": pid, "polite": int(polite)})

    def forget(self, pid: int) -> None:
        """Leave the process ``pid`` alone: it has ended."""
        self._tell({"forget": pid})

    def remove_later(self, folder: Path) -> None:
        """Remove ``folder`` when this process is gone."""
        self._tell({"folder": str(folder)})

    def _tell(self, command: dict[str, object]) -> None:
        with self._lock:
            # After a fork the pipe is the parent's: a child that wants a watchman gets its own.
            if self._process is None or self._owner != os.getpid():
                self._process = self._start()
                self._owner = os.getpid()
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[2])
        code = f"import sys; sys.path.insert(0, {root!r}); from {__name__} import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        atexit.register(self._finish, process, os.getpid())
        return process

    def _finish(self, process: subprocess.Popen[bytes], owner: int) -> None:
        if os.getpid() != owner:
            return
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


REAPER = Reaper()


def main() -> None:
    """Read commands until the pipe closes, then end what is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watched: dict[int, int] = {}
    folders: list[str] = []
    for line in sys.stdin:
        command = json.loads(line)
        if "watch" in command:
            watched[command["watch"]] = command["polite"]
        elif "forget" in command:
            watched.pop(command["forget"], None)
        else:
            folders.append(command["folder"])
    end_all(watched)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def end_all(watched: dict[int, int]) -> None:
    """End processes, given with their polite signals: all politely first, after some seconds with SIGKILL."""
    for pid, polite in watched.items():
        continue_tree(pid)  # a frozen server cannot end, nor can one whose children are frozen
        send(pid, polite)
    with contextlib.suppress(ConditionNotMetError):
        wait_until(lambda: not any(alive(pid) for pid in watched), _GRACE)
    for pid in watched:
        kill_tree(pid)
