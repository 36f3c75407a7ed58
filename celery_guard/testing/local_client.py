"""A Docker client without Docker: what pytest-celery asks of one, answered with processes of this machine.

pytest-celery reaches Docker through one session fixture, ``docker_client``. Given a `LocalDockerClient`
there, its brokers are real servers and its workers real ``celery worker`` processes; all of its fixtures,
nodes and clusters stay as they are. What cannot be had without Docker raises `NotLocalError`.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from celery_guard.testing.local_container import (
    LocalContainer,
    NotLocalError,
    Program,
    ServerProgram,
    WorkerProgram,
)
from celery_guard.testing.reaper import REAPER
from celery_guard.testing.servers import RabbitMQServer, RedisServer, ServerProcess, ValkeyServer

__all__ = ["LocalDockerClient", "NotLocalError"]


class LocalDockerClient:
    """Starts processes where a Docker client starts containers. None outlives `close` or this process.

    An image is known by its name: ``redis`` (Valkey where no Redis is installed), ``valkey``, ``rabbitmq``.
    All that is *built* is a worker and runs in this Python, with the packages installed here. A RabbitMQ is
    kept when its container is removed and is given, emptied, to the next one: starting it takes seconds.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="guard-local-"))
        REAPER.remove_later(self.folder)
        self.networks = _Networks()
        self.volumes = _Volumes(self.folder)
        self.images = _Images()
        self.containers = _Containers(self)
        self._idle: list[RabbitMQServer] = []

    def close(self) -> None:
        """End every process and remove every file."""
        self.containers.close()
        for server in self._idle:
            server.close()
        self._idle.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- servers --------------------------------------------------------------------------------

    def _server(self, name: str, args: list[str], env: Mapping[str, str]) -> ServerProgram:
        """Return the program for a server image."""
        if name == "rabbitmq":
            return self._rabbitmq(env)
        kind = {"redis": RedisServer, "valkey": ValkeyServer}.get(name)
        if kind is None:
            raise NotLocalError(f"the image {name!r} has no counterpart among the local servers")
        if kind is RedisServer and RedisServer.available() and not ValkeyServer.available():
            kind = ValkeyServer
        return ServerProgram(_made(kind, args=args), inner_port=6379, release=_close)

    def _rabbitmq(self, env: Mapping[str, str]) -> ServerProgram:
        if env:
            return ServerProgram(_made(RabbitMQServer, env=dict(env)), inner_port=5672, release=_close)
        server = self._idle.pop() if self._idle else _made(RabbitMQServer)
        return ServerProgram(server, inner_port=5672, release=self._take_back)

    def _take_back(self, server: ServerProcess) -> None:
        """Keep an emptied broker for the next test; one that was killed or does not answer is closed."""
        assert isinstance(server, RabbitMQServer)
        try:
            if not (server.running and server.answers()):
                raise RuntimeError("not running")
            server.reset()
        except Exception:  # noqa: BLE001 - any trouble: the next test gets a fresh broker
            server.close()
        else:
            self._idle.append(server)


def _made(kind: type[Any], **options: Any) -> Any:
    reason = kind.available()
    if reason is not None:
        raise NotLocalError(reason)
    return kind(**options)


def _close(server: ServerProcess) -> None:
    server.close()


class _Networks:
    def create(self, name: str, **_: Any) -> _Named:
        """Return a network. All are the loopback interface."""
        return _Named(name)


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name
        self.id = name

    def remove(self, *_: Any, **__: Any) -> None:
        """Nothing is there to remove."""


class _Images:
    def build(
        self, *, tag: str = "", buildargs: Mapping[str, str] | None = None, **_: Any
    ) -> tuple[_Named, list[dict[str, str]]]:
        """Return a worker image. Nothing is built: a Celery version asked for must be the installed one."""
        wanted = (buildargs or {}).get("CELERY_VERSION") or ""
        if wanted and wanted != version("celery"):
            raise NotLocalError(
                f"the worker image asks for Celery {wanted}, but {version('celery')} is installed here: "
                "local workers run in this environment"
            )
        return _Named(f"local-worker/{tag or uuid.uuid4().hex}"), []

    def pull(self, repository: str, **_: Any) -> _Named:
        """Return an image of this name."""
        return _Named(repository)

    def get(self, name: str, **_: Any) -> _Named:
        """Return an image of this name."""
        return _Named(name)


class _Volumes:
    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, name: str, **_: Any) -> _Volume:
        """Create a volume: a folder."""
        return _Volume(name, self.path(name))

    def path(self, name: str) -> Path:
        """Return the folder of a volume, which is created if need be."""
        folder = self._root / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


class _Volume(_Named):
    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self.folder = folder

    def remove(self, *_: Any, **__: Any) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class _Filler:
    """The container that pytest-docker-tools creates, without starting it, to put files into a volume."""

    def __init__(self, mounts: Mapping[str, Path]) -> None:
        self._mounts = mounts

    def put_archive(self, path: str, data: BinaryIO) -> bool:
        """Unpack a tar archive into the volume that is mounted at ``path``."""
        with tarfile.open(fileobj=data) as archive:
            archive.extractall(self._mounts[path], filter="data")
        return True

    def remove(self, *_: Any, **__: Any) -> None:
        """Nothing is there to remove."""


class _Containers:
    def __init__(self, client: LocalDockerClient) -> None:
        self._client = client
        self._all: list[LocalContainer] = []

    def create(self, *, volumes: Mapping[str, Mapping[str, str]] | None = None, **_: Any) -> _Filler:
        """Return a container that can be filled with files but does not run."""
        return _Filler(self._mounts(volumes))

    def run(
        self,
        *,
        image: str,
        command: list[str | None] | None = None,
        environment: Mapping[str, str] | None = None,
        volumes: Mapping[str, Mapping[str, str]] | None = None,
        network: str = "",
        ports: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        name: str = "",
        **_: Any,
    ) -> LocalContainer:
        """Start what the image stands for."""
        container_id = uuid.uuid4().hex
        # pytest-docker-tools resolves an empty argument, as in ``--save ""``, to None.
        argv = ["" if part is None else part for part in command or []]
        env = {key: str(value) for key, value in (environment or {}).items()}
        program: Program
        if image.startswith("local-worker/"):
            if not argv:
                raise NotLocalError("a local worker needs its command: only Docker knows the image's own")
            program = WorkerProgram(
                argv=argv,
                env=env,
                mounts=self._mounts(volumes),
                folder=self._client.folder / container_id,
                hostname=container_id[:12],
                python=sys.executable,
            )
        else:
            short = PurePosixPath(image).name.partition(":")[0]
            program = self._client._server(short, argv[1:], env)
        container = LocalContainer(
            container_id=container_id,
            name=name or f"local_{container_id[:12]}",
            program=program,
            env=env,
            network=network,
            labels=dict(labels or {}),
            forget=self._forget,
        )
        self._all.append(container)
        container.start()
        return container

    def get(self, container_id: str) -> LocalContainer:
        """Return a container by id or name. LookupError if there is none."""
        for container in self._all:
            if container_id in (container.id, container.name):
                return container
        raise LookupError(f"no container {container_id!r}")

    def list(self, **_: Any) -> list[LocalContainer]:
        """Return the containers that were not removed."""
        return list(self._all)

    def close(self) -> None:
        """Remove all containers."""
        for container in list(self._all):
            container.remove(force=True)

    def _forget(self, container: LocalContainer) -> None:
        if container in self._all:
            self._all.remove(container)

    def _mounts(self, volumes: Mapping[str, Mapping[str, str]] | None) -> dict[str, Path]:
        return {spec["bind"]: self._client.volumes.path(name) for name, spec in (volumes or {}).items()}
