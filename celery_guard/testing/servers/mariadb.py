"""MariaDB: ``mariadbd`` and ``mariadb-install-db`` of the system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

from celery_guard.testing.servers.accounts import run_as, unprivileged
from celery_guard.testing.servers.base import ServerProcess, ServerStartError
from celery_guard.testing.servers.probes import mysql_answers

# Debian's PATH of an ordinary user lacks the folders of servers.
_OUTSIDE_PATH = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", "/usr/local/bin"))


class MariaDBServer(ServerProcess):
    """A MariaDB with a database ``guard`` and a user ``guard``, password ``guard``, who may do everything.
    ``args`` are further options of ``mariadbd``. Run by root, it takes an account without rights.
    """

    kind = "mariadb"
    ready_prompt = "ready for connections"
    user = "guard"
    password = "guard"
    database = "guard"

    def __init__(self, *, args: Sequence[str] = ()) -> None:
        super().__init__()
        self.args = tuple(args)
        self.data = self.folder / "data"
        self.socket = self.folder / "s"  # short: a socket's path has room for about a hundred bytes

    @classmethod
    def available(cls) -> str | None:
        missing = [name for name in ("mariadbd", "mariadb-install-db") if _which(name) is None]
        if missing:
            return f"no {' and no '.join(missing)} (install the package mariadb-server)"
        try:
            unprivileged("mysql")
        except LookupError as error:
            return str(error)
        return None

    def _account(self) -> tuple[int, int] | None:
        return unprivileged("mysql")

    def _prepare(self) -> None:
        if self.data.exists():
            return
        self._subfolder("data")
        self._subfolder("tmp")
        self._write(
            "setup.sql",
            f"CREATE DATABASE IF NOT EXISTS {self.database} CHARACTER SET utf8mb4;\n"
            f"CREATE USER IF NOT EXISTS '{self.user}'@'{self.host}' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{self.user}'@'{self.host}' WITH GRANT OPTION;\n",
        )
        install = [
            str(_which("mariadb-install-db")),
            "--no-defaults",
            f"--datadir={self.data}",
            f"--tmpdir={self.folder / 'tmp'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        ]
        done = run_as(self.account, install, cwd=self.folder, env=self._env())
        if done.returncode != 0:
            shutil.rmtree(self.data)
            raise ServerStartError(self.kind, "mariadb-install-db failed", done.stdout + done.stderr)

    def argv(self) -> list[str]:
        place = {
            "bind-address": self.host,
            "port": str(self.port),
            "socket": str(self.socket),
            "datadir": str(self.data),
            "tmpdir": str(self.folder / "tmp"),
            "pid-file": str(self.folder / "pid"),
            "init-file": str(self.folder / "setup.sql"),
        }
        small = [
            "--skip-name-resolve",
            "--skip-log-bin",
            "--max-connections=200",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=16M",
            # A killed process loses nothing that it has written: only a machine that fails does.
            "--innodb-flush-log-at-trx-commit=2",
        ]
        options = [f"--{name}={value}" for name, value in place.items()]
        return [str(_which("mariadbd")), "--no-defaults", *small, *self.args, *options]

    def answers(self) -> bool:
        return mysql_answers(self.port)

    @property
    def url(self) -> str:
        return f"mysql://{self.user}:{self.password}@{self.host}:{self.port}/{self.database}"

    @property
    def django(self) -> dict[str, Any]:
        """One entry of Django's ``DATABASES``. With PyMySQL, call ``pymysql.install_as_MySQLdb()`` before."""
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": self.database,
            "USER": self.user,
            "PASSWORD": self.password,
            "HOST": self.host,
            "PORT": str(self.port),
            "OPTIONS": {"charset": "utf8mb4"},
        }


def _which(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_OUTSIDE_PATH)
