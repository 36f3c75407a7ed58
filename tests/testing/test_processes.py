"""Real workers and beats: started, waited for, frozen, killed, shut down."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_guard.testing import proctree
from celery_guard.testing.bodylog import BodyLog
from celery_guard.testing.processes import (
    BeatProcess,
    ConditionNotMetError,
    ProcessEndedError,
    WorkerProcess,
    wait_until,
)
from celery_guard.testing.servers import RedisServer

pytestmark = pytest.mark.real

APP = """
    import os, subprocess, sys, time
    from celery import Celery
    from celery_guard.testing.bodylog import BodyLog

    app = Celery("lab", broker=os.environ["LAB_BROKER"], backend=os.environ["LAB_BROKER"])
    app.conf.beat_schedule = {"tick": {"task": "lab.note", "schedule": 0.2, "args": ["tick"]}}
    app.conf.broker_connection_retry_on_startup = True
    log = BodyLog.from_env()

    @app.task(name="lab.note")
    def note(what):
        log.write("note", what=what, settings=os.environ.get("DJANGO_SETTINGS_MODULE"))
        return what

    @app.task(name="lab.spawn")
    def spawn():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        log.write("spawned", child=child.pid)
        time.sleep(600)

    @app.task(name="lab.hold")
    def hold(gate):
        log.write("holding")
        while not os.path.exists(gate):
            time.sleep(0.02)
        log.write("let go")
"""


@pytest.fixture
def lab(redis_server: RedisServer, body_log: BodyLog, tmp_path: Path) -> Iterator[dict[str, Any]]:
    redis = pytest.importorskip("redis")
    (tmp_path / "lab.py").write_text(textwrap.dedent(APP))
    yield {
        "app": "lab",
        "cwd": tmp_path,
        "folder": tmp_path,
        "env": {"LAB_BROKER": redis_server.url_of(9), **body_log.env},
    }
    redis.Redis.from_url(redis_server.url_of(9)).flushdb()


def _send(lab: dict[str, Any], name: str, *args: str) -> Any:
    celery = pytest.importorskip("celery")
    url = lab["env"]["LAB_BROKER"]
    return celery.Celery(broker=url, backend=url, set_as_current=False).send_task(name, args)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_worker_runs_a_task_and_ends_when_asked(lab: dict[str, Any], body_log: BodyLog, pool: str) -> None:
    with WorkerProcess(pool=pool, **lab) as worker:
        assert _send(lab, "lab.note", "hello").get(timeout=20) == "hello"
        assert body_log.count("note", what="hello") == 1
        assert (len(worker.child_pids()) >= 2) == (pool == "prefork")
        worker.warm_shutdown()
        assert worker.wait(20) == 0


def test_the_test_runners_settings_stay_out_of_a_worker(
    lab: dict[str, Any], body_log: BodyLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = WorkerProcess(pool="solo", **lab)
    with monkeypatch.context() as patch:
        patch.setenv("DJANGO_SETTINGS_MODULE", "no.such.settings")
        worker.start()
    with worker:
        _send(lab, "lab.note", "hello").get(timeout=20)
    assert body_log.read("note")[0]["settings"] is None


def test_a_killed_worker_is_gone_with_its_children_and_can_start_again(
    lab: dict[str, Any], body_log: BodyLog, tmp_path: Path
) -> None:
    with WorkerProcess(**lab) as worker:
        first = worker.pid
        gate = tmp_path / "gate"
        _send(lab, "lab.hold", str(gate))
        body_log.wait_for("holding")
        everyone = [worker.pid, *worker.child_pids()]
        assert len(everyone) >= 3
        worker.sigkill_group()
        assert not set(everyone) & set(proctree.living())
        assert worker.returncode == -9
        gate.touch()

        worker.start().wait_ready()
        assert worker.pid != first
        assert _send(lab, "lab.note", "again").get(timeout=20) == "again"
        assert body_log.count("let go") == 0


def test_a_frozen_worker_does_nothing_until_it_may_go_on(
    lab: dict[str, Any], body_log: BodyLog, tmp_path: Path
) -> None:
    with WorkerProcess(**lab) as worker:
        gate = tmp_path / "gate"
        _send(lab, "lab.hold", str(gate))
        body_log.wait_for("holding")
        worker.sigstop_group()
        frozen = {_state(pid) for pid in [worker.pid, *worker.child_pids()]}
        assert frozen == {"T"}
        gate.touch()
        assert worker.running
        worker.sigcont_group()
        body_log.wait_for("let go")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_a_body_started_does_not_outlive_a_worker_whose_parent_was_killed(
    lab: dict[str, Any], body_log: BodyLog
) -> None:
    with WorkerProcess(**lab) as worker:
        _send(lab, "lab.spawn")
        left = body_log.wait_for("spawned")[0]["child"]
        worker.sigkill_parent()
        assert not worker.running
        assert proctree.alive(left)
    assert not proctree.alive(left)


def test_a_worker_that_ends_instead_of_getting_ready_shows_its_log(lab: dict[str, Any]) -> None:
    (lab["cwd"] / "broken.py").write_text("raise RuntimeError('no such thing')\n")
    worker = WorkerProcess(**{**lab, "app": "broken"})
    with pytest.raises(ProcessEndedError, match="no such thing"):
        worker.start().wait_ready()
    worker.close()


def test_waiting_for_the_end_has_an_end(lab: dict[str, Any]) -> None:
    with WorkerProcess(pool="solo", **lab) as worker, pytest.raises(ConditionNotMetError):
        worker.wait(timeout=0.01)


def test_a_beat_sends_and_ends(lab: dict[str, Any], body_log: BodyLog) -> None:
    with BeatProcess(max_interval=1, **lab) as beat, WorkerProcess(pool="solo", **lab):
        body_log.wait_for("note", what="tick", count=2)
        beat.warm_shutdown()
        assert beat.wait(20) == 0
    assert (lab["folder"] / "beat-schedule").exists() or list(lab["folder"].glob("beat-schedule*"))


def test_no_worker_outlives_a_test_run_that_is_killed(lab: dict[str, Any]) -> None:
    code = (
        "from celery_guard.testing.processes import WorkerProcess\n"
        f"options = { ({**lab, 'cwd': str(lab['cwd']), 'folder': str(lab['folder'])})!r}\n"
        "worker = WorkerProcess(**options).start().wait_ready()\n"
        "print(worker.pid, *worker.child_pids(), flush=True)\n"
        "input()\n"
    )
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        pids = {int(pid) for pid in run.stdout.readline().split()}
        assert len(pids) >= 3
        run.kill()
    wait_until(lambda: not pids & set(proctree.living()), 20, "the worker to end")
