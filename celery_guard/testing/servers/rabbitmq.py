"""RabbitMQ: the broker's own start script, with a node, an ``epmd`` and files that are nobody else's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from celery_guard.testing import groups
from celery_guard.testing.servers.base import ServerProcess
from celery_guard.testing.servers.ports import free_port
from celery_guard.testing.servers.probes import amqp_answers

# Debian's /usr/sbin/rabbitmq-server is a wrapper that changes the user and writes to /var: the script behind
# it does neither.
_SYSTEM = ("/usr/lib/rabbitmq/bin", "/usr/lib/rabbitmq/lib/*/sbin", "/opt/rabbitmq/sbin", "/usr/local/sbin")


class RabbitMQServer(ServerProcess):
    """A RabbitMQ node without plugins, user ``guest``. It takes some seconds to start: share it and
    `reset` it between tests. ``config`` is text in the format of rabbitmq.conf, ``env`` further environment
    variables.
    """

    kind = "rabbitmq"
    ready_prompt = "Server startup complete"
    ready_timeout = 120.0

    def __init__(self, *, config: str = "", env: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.config = config
        self.extra_env = dict(env or {})
        self.epmd_port = free_port()
        self.dist_port = free_port()
        self.node = f"guard{self.port}@localhost"
        self._epmd: groups.ProcessGroup | None = None

    @classmethod
    def available(cls) -> str | None:
        if _script("rabbitmq-server") is None:
            return "no rabbitmq-server (install the package rabbitmq-server)"
        missing = [name for name in ("erl", "epmd") if shutil.which(name) is None]
        if missing:
            return f"no {' and no '.join(missing)} on the PATH (install Erlang)"
        return None

    def argv(self) -> list[str]:
        return [str(_script("rabbitmq-server"))]

    def _prepare(self) -> None:
        (self.folder / "rabbitmq-env.conf").touch()
        (self.folder / "advanced.config").write_text("[].\n")
        (self.folder / "enabled_plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(self.config)

    def _env(self) -> dict[str, str]:
        folder = self.folder
        loopback_only = "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"
        return groups.base_environment() | {
            "HOME": str(folder),  # the cookie of Erlang's distribution is kept there
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": self.host,
            "ERL_CRASH_DUMP": str(folder / "erl_crash.dump"),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": self.host,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(folder / "feature_flags"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback_only,
            **self.extra_env,
        }

    def _spawn(self) -> None:
        # Started by Erlang itself, epmd would become a daemon that outlives the broker.
        if self._epmd is None or not self._epmd.running:
            self._epmd = groups.ProcessGroup(
                [str(shutil.which("epmd")), "-port", str(self.epmd_port), "-address", self.host],
                log_path=self.folder / "epmd.log",
                cwd=self.folder,
                env=self._env(),
            )
        super()._spawn()

    def _end_all(self) -> None:
        super()._end_all()
        if self._epmd is not None:
            self._epmd.kill()

    def answers(self) -> bool:
        return amqp_answers(self.port)

    def control(self, *args: str) -> str:
        """Run ``rabbitmqctl`` on this node and return what it prints. Takes about a second."""
        done = subprocess.run(
            [str(_script("rabbitmqctl")), "-n", self.node, *args],
            check=False,
            env=self._env() | {"RABBITMQ_CTL_ERL_ARGS": "-start_epmd false"},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode != 0:
            raise RuntimeError(f"rabbitmqctl {' '.join(args)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def reset(self) -> None:
        """Remove all queues and their messages, of living consumers too."""
        each = "rabbit_amqqueue:list()"
        self.control("eval", f'[rabbit_amqqueue:delete(Q, false, false, <<"test">>) || Q <- {each}].')

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}//"


def _script(name: str) -> str | None:
    """Return the path of one of RabbitMQ's own scripts, None if there is none."""
    for pattern in _SYSTEM:
        for folder in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True):
            if (folder / name).exists():
                return str(folder / name)
    return shutil.which(name)
