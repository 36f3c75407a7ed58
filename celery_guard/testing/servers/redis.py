"""Redis (``redis-server`` on the PATH) and all that speaks like it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from celery_guard.testing.servers.base import ServerProcess
from celery_guard.testing.servers.probes import redis_answers


class RedisServer(ServerProcess):
    """A Redis without persistence, unless asked: ``appendonly`` (every write is on disk before its answer)
    or ``save`` (as in redis.conf: ``"60 1"``). ``args`` are further options of the command line, such as
    ``["--maxmemory-policy", "allkeys-lru"]``, and win over these.
    """

    kind = "redis"
    ready_prompt = "Ready to accept connections"

    def __init__(self, *, appendonly: bool = False, save: str = "", args: Sequence[str] = ()) -> None:
        super().__init__()
        self.appendonly = appendonly
        self.save = save
        self.args = tuple(args)

    @classmethod
    def program(cls) -> str | None:
        """Return the path of the server's program, None if there is none."""
        return shutil.which("redis-server")

    @classmethod
    def available(cls) -> str | None:
        return None if cls.program() else "no redis-server on the PATH (install the package redis-server)"

    def argv(self) -> list[str]:
        program = self.program()
        assert program is not None
        appendonly = "yes" if self.appendonly else "no"
        lasting = ["--appendonly", appendonly, "--appendfsync", "always", "--save", self.save]
        # Last, so that no argument of the caller moves the server out of its place.
        place = ["--bind", self.host, "--port", str(self.port), "--dir", str(self.folder)]
        output = ["--daemonize", "no", "--logfile", "", "--loglevel", "notice"]
        return [program, *lasting, *self.args, *place, *output]

    def answers(self) -> bool:
        return redis_answers(self.port)

    def url_of(self, database: int) -> str:
        """Return the URL of one of the numbered databases."""
        return f"redis://{self.host}:{self.port}/{database}"

    @property
    def url(self) -> str:
        return self.url_of(0)
