"""A small laboratory: an app module, real servers, real workers, and a log that the bodies write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from celery_guard.core.contract import Execution
from celery_guard.core.states import State
from celery_guard.testing.bodylog import BodyLog
from celery_guard.testing.groups import base_environment
from celery_guard.testing.processes import QUIET, WorkerProcess, wait_until

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import os, signal, time, sys, uuid, datetime
from celery import Celery, chain, chord, group, signals
from celery_guard import Guard, GuardedTask, store_of
from celery_guard.testing.bodylog import BodyLog
LOG = BodyLog.from_env()
def log(event, **facts): LOG.write(event, node=os.environ.get("NODE"), **facts)
app = Celery("labapp", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
app.conf.update(guard_store=os.environ["STORE"], worker_prefetch_multiplier=1, result_expires=3600,
                broker_connection_retry_on_startup=True)
if os.environ["BROKER"].startswith("redis"):
    app.conf.broker_transport_options = {"visibility_timeout": float(os.environ["VISIBILITY"]),
                                         "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    app.conf.result_backend_transport_options = {}
app.conf.guard_hold_visibility = os.environ.get("HOLD", "1") == "1"
if os.environ.get("DJANGO_SETTINGS_MODULE"):
    import django; django.setup()
def task(**options):
    celery_options = options.pop("celery", {})
    def wrap(function):
        name = "labapp." + function.__name__
        return app.task(name=name, bind=True, base=GuardedTask, guard=Guard(**options), **celery_options)(function)
    return wrap
@task(lease=6)
def slow(self, n, seconds):
    log("start", n=n, token=self.guard.token, attempt=self.guard.attempt)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        self.guard.check()
    log("end", n=n, token=self.guard.token)
    return n
@app.task
def plain(value): log("plain", value=value); return value
"""


class Lab:
    """One application under test. Everything is closed at the end of the test."""

    def __init__(
        self,
        folder: Path,
        *,
        broker: str,
        backend: str,
        store: str,
        visibility: float = 3600,
        hold: bool = True,
        env: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.bodies = BodyLog(folder / "bodies.jsonl")
        self.env = {
            "BROKER": broker,
            "BACKEND": backend,
            "STORE": store,
            "VISIBILITY": str(visibility),
            "HOLD": "1" if hold else "0",
            **self.bodies.env,
            **(env or {}),
        }
        self._workers: list[WorkerProcess] = []
        self.app_text("")

    def app_text(self, text: str) -> None:
        """Write the app module: the prelude and ``text``."""
        (self.folder / "labapp.py").write_text(PRELUDE + text)

    def worker(
        self, node: str, *args: str, concurrency: int = 1, pool: str = "prefork", **env: str
    ) -> WorkerProcess:
        """Start a worker and wait until it is ready."""
        worker = WorkerProcess(
            app="labapp",
            node=node,
            env={**self.env, "NODE": node, **env},
            cwd=self.folder,
            folder=self.folder,
            concurrency=concurrency,
            pool=pool,
            args=(*QUIET, *args),
        )
        self._workers.append(worker)
        return worker.start().wait_ready()

    def run(self, code: str, *, timeout: float = 60, **env: str) -> str:
        """Run code with the app imported, in a process of its own; return the last line it printed."""
        path = os.pathsep.join([str(self.folder), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-c", "from labapp import *\n" + code],
            env={**base_environment(), **self.env, "NODE": "publisher", "PYTHONPATH": path, **env},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return (done.stdout.strip().splitlines() or [""])[-1]

    def executions(self, task: str | None = None) -> list[Execution]:
        """Read the store."""
        return list(self.store().executions(task=f"labapp.{task}" if task else None))

    def states(self, task: str | None = None) -> list[State]:
        """The states of all executions, newest first."""
        return [execution.state for execution in self.executions(task)]

    def store(self) -> Any:
        from celery_guard.stores.redis import RedisStore

        return RedisStore(self.env["STORE"])

    def wait_state(
        self, state: State, *, count: int = 1, task: str | None = None, timeout: float = 30
    ) -> None:
        """Wait until ``count`` executions are in ``state``."""
        wait_until(lambda: self.states(task).count(state) >= count, timeout, f"{count} executions {state}")

    def starts(self) -> list[dict[str, Any]]:
        return list(self.bodies.read("start"))

    def ends(self) -> list[dict[str, Any]]:
        return list(self.bodies.read("end"))

    def logs(self) -> str:
        return "\n".join(f"--- {worker.node}\n{worker.log_tail(60)}" for worker in self._workers)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
