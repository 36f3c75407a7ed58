"""A container that is a process: the part of Docker's container object that tests use."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal as signals
import subprocess
import sys
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from celery_guard.testing.groups import ProcessGroup, base_environment
from celery_guard.testing.servers import ServerProcess
from celery_guard.testing.servers.ports import LOOPBACK
from celery_guard.testing.waiting import wait_until

_ROOT = Path(__file__).resolve().parents[2]


class NotLocalError(RuntimeError):
    """Something was asked for that only Docker can do. The message says what, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; CELERY_GUARD_TEST_DOCKER=1 uses Docker instead")


class Program(ABC):
    """What runs in a container."""

    hostname: str
    inner_port: int | None = None
    outer_port: int | None = None

    @abstractmethod
    def start(self) -> None:
        """Start it, also once more. Does not wait until a worker is ready."""

    @abstractmethod
    def group(self) -> ProcessGroup | None:
        """Return the process of the last start."""

    @abstractmethod
    def log(self) -> bytes:
        """Return the output of all starts."""

    @abstractmethod
    def release(self) -> None:
        """End it for good."""

    @abstractmethod
    def run(self, argv: Sequence[str]) -> tuple[int, bytes]:
        """Run a command beside it and return its exit code and output."""

    def listening(self) -> bool:
        """Return whether its port, if it has one, is open."""
        return False


class ServerProgram(Program):
    """A server. ``release`` gets it when its container is removed."""

    def __init__(
        self, server: ServerProcess, *, inner_port: int, release: Callable[[ServerProcess], None]
    ) -> None:
        self.server = server
        self.inner_port = inner_port
        self.outer_port = server.port
        # pytest-celery makes the URL that workers use of the host's name alone: here, name and port.
        self.hostname = f"{LOOPBACK}:{server.port}"
        self._release = release

    def start(self) -> None:
        self.server.start()

    def group(self) -> ProcessGroup | None:
        return self.server.group

    def log(self) -> bytes:
        return self.server.log().encode()

    def release(self) -> None:
        self._release(self.server)

    def run(self, argv: Sequence[str]) -> tuple[int, bytes]:
        raise NotLocalError(f"cannot run {argv[0]!r} inside of a local {self.server.kind}")

    def listening(self) -> bool:
        return self.server.running and self.server.answers()


class WorkerProgram(Program):
    """A Python command, such as ``celery worker``, that sees its mounted volumes under their local paths."""

    def __init__(
        self,
        *,
        argv: Sequence[str],
        env: Mapping[str, str],
        mounts: Mapping[str, Path],
        folder: Path,
        hostname: str,
        python: str = sys.executable,
    ) -> None:
        self.hostname = hostname
        self._python = python
        # In a container %h is its id, and pytest-celery addresses the worker by that.
        self._argv = self._local([part.replace("%h", hostname) for part in argv])
        self._mounts = dict(mounts)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._cwd = next(iter(self._mounts.values()), folder)
        self._env = self._local_env(env)
        self._group: ProcessGroup | None = None

    def _local(self, argv: Sequence[str]) -> list[str]:
        if argv[0] == "python":
            return [self._python, *argv[1:]]
        beside = Path(self._python).parent / argv[0]
        if beside.exists():
            return [str(beside), *argv[1:]]
        return [self._python, "-m", *argv] if argv[0] == "celery" else list(argv)

    def _local_env(self, env: Mapping[str, str]) -> dict[str, str]:
        mapped = {
            name: os.pathsep.join(str(self._mounts.get(part, part)) for part in value.split(os.pathsep))
            if name == "PYTHONPATH"
            else value
            for name, value in env.items()
        }
        # What the test runner can import, a worker image would have installed.
        path = [mapped.get("PYTHONPATH", ""), base_environment().get("PYTHONPATH", ""), str(_ROOT)]
        return base_environment() | mapped | {"PYTHONPATH": os.pathsep.join(part for part in path if part)}

    @property
    def log_path(self) -> Path:
        """The file that the output goes to."""
        return self._folder / "log"

    def start(self) -> None:
        if self._group is not None:
            self._group.kill()
        self._group = ProcessGroup(self._argv, log_path=self.log_path, cwd=self._cwd, env=self._env)

    def group(self) -> ProcessGroup | None:
        return self._group

    def log(self) -> bytes:
        return self.log_path.read_bytes() if self.log_path.exists() else b""

    def release(self) -> None:
        if self._group is not None:
            self._group.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, argv: Sequence[str]) -> tuple[int, bytes]:
        done = subprocess.run(
            self._local(argv),
            cwd=self._cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.returncode, done.stdout


class LocalContainer:
    """Docker's container object over a `Program`. ``status`` and ``attrs`` are as of the last `reload`.

    A signal goes to the main process alone; when that is gone, so is everything else in the container.
    """

    def __init__(
        self,
        *,
        container_id: str,
        name: str,
        program: Program,
        env: Mapping[str, str],
        network: str,
        labels: dict[str, str],
        forget: Callable[[LocalContainer], None],
    ) -> None:
        self.id = container_id
        self.name = name
        self.labels = labels
        self.program = program
        self._env = dict(env)
        self._network = network or "local"
        self._forget = forget
        self._removed = False
        self.attrs: dict[str, Any] = {}
        self.status = "created"

    def start(self) -> None:
        """Start the program, and take note of it."""
        self.program.start()
        self.reload()

    def reload(self) -> None:
        """Bring ``status`` and ``attrs`` up to date."""
        group = self.program.group()
        running = group is not None and group.running
        if group is not None and not running:
            group.sweep()
        self.status = "running" if running else "exited"
        inner, outer = self.program.inner_port, self.program.outer_port
        bound = {f"{inner}/tcp": [{"HostIp": LOOPBACK, "HostPort": str(outer)}]} if inner else {}
        self.attrs = {
            "Id": self.id,
            "Name": f"/{self.name}",
            "Config": {
                "Hostname": self.program.hostname,
                "Env": [f"{name}={value}" for name, value in self._env.items()],
                "Labels": self.labels,
            },
            "HostConfig": {"PortBindings": bound},
            "NetworkSettings": {
                "Networks": {self._network: {"IPAddress": LOOPBACK}},
                "Ports": bound if running else {},
            },
            "State": {
                "Status": self.status,
                "Running": running,
                "Pid": group.pid if group is not None and running else 0,
                "ExitCode": self._exit_code(group),
            },
            "Mounts": [],
        }

    @staticmethod
    def _exit_code(group: ProcessGroup | None) -> int:
        """Return what Docker would: 128 and the signal for one who was killed."""
        code = 0 if group is None else group.returncode or 0
        return code if code >= 0 else 128 - code

    def kill(self, signal: str | int | None = None) -> None:
        """Send a signal (SIGKILL if none is named) to the main process. SIGKILL ends all, awaited."""
        group = self.program.group()
        if group is None or not group.running:
            raise RuntimeError(f"container {self.name} is not running")
        signum = _signal_number(signal)
        if signum == signals.SIGKILL:
            group.kill()
        elif signum == signals.SIGCONT:
            group.resume()
        else:
            group.signal(signum)

    def pause(self) -> None:
        """Freeze all processes."""
        if (group := self.program.group()) is not None:
            group.pause()

    def unpause(self) -> None:
        """Let all processes go on."""
        if (group := self.program.group()) is not None:
            group.resume()

    def stop(self, timeout: float = 10) -> None:
        """Ask the program to end; kill it after ``timeout`` seconds."""
        if (group := self.program.group()) is not None:
            group.stop(timeout)

    def restart(self, timeout: float = 10) -> None:
        """Stop the program and start it again, with the same address and files."""
        self.stop(timeout)
        self.start()

    def wait(self, timeout: float = 60, **_: Any) -> dict[str, Any]:
        """Wait until the main process ends."""
        if (group := self.program.group()) is not None:
            wait_until(lambda: not group.running, timeout, f"container {self.name} to end")
        return {"StatusCode": self._exit_code(group), "Error": None}

    def remove(self, force: bool = False, **_: Any) -> None:
        """End the program for good; one that runs is refused without ``force``. Can be called again."""
        group = self.program.group()
        if not force and group is not None and group.running:
            raise RuntimeError(f"container {self.name} is running: stop it before removing it, or force")
        if not self._removed:
            self._removed = True
            self.program.release()
            self._forget(self)

    def logs(self, **_: Any) -> bytes:
        """Return the output of all starts."""
        return self.program.log()

    def exec_run(self, cmd: str | Sequence[str], **_: Any) -> tuple[int, bytes]:
        """Run a command beside the program. It sees all processes of this machine."""
        argv = shlex.split(cmd) if isinstance(cmd, str) else list(cmd)
        if argv[:2] == ["cat", "/proc/net/tcp"]:
            return 0, self._open_ports()
        return self.program.run(argv)

    def _open_ports(self) -> bytes:
        """Return the listening socket as the kernel's table would show it inside of a container."""
        if not self.program.inner_port or not self.program.listening():
            return b""
        return f"0: 00000000:{self.program.inner_port:04X} 00000000:0000 0A".encode()

    def get_archive(self, path: str, **_: Any) -> tuple[Iterator[bytes], dict[str, Any]]:
        """Return a tar archive of a file or folder, by its path on this machine."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(path, arcname=Path(path).name)
        return iter([packed.getvalue()]), {"name": Path(path).name, "size": len(packed.getvalue())}


def _signal_number(name: str | int | None) -> int:
    if name is None:
        return signals.SIGKILL
    if isinstance(name, int) or name.isdigit():
        return int(name)
    return signals.Signals[name if name.startswith("SIG") else f"SIG{name}"]
