"""Schedules with real beats, workers and schedulers: one execution a due time, whatever is killed and restarted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.groups import base_environment
from celery_guard.testing.processes import BeatProcess, wait_until
from celery_guard.testing.servers.redis import RedisServer

from .conftest import left
from .lab import ROOT, Lab

pytestmark = pytest.mark.real

TICK = """
from celery.schedules import crontab, schedule
@task(overlap="allow")
def tick(self, n=1):
    log("start", due=int(self.guard.scheduled_at.timestamp() * 1000), key=self.guard.key)
"""


@pytest.fixture
def beats() -> Iterator[Callable[..., BeatProcess]]:
    """Makes beats of a lab, and ends them."""
    made: list[BeatProcess] = []

    def make(it: Lab, node: str, **options: Any) -> BeatProcess:
        options.setdefault("max_interval", 1)
        env = {**it.env, "NODE": node}
        made.append(BeatProcess(app="labapp", node=node, env=env, cwd=it.folder, folder=it.folder, **options))
        return made[-1]

    yield make
    for beat in made:
        beat.close()


def due_times(it: Lab) -> list[int]:
    return [start["due"] for start in it.starts()]


def contiguous(dues: list[int], length: int) -> bool:
    return sorted(dues) == list(range(min(dues), max(dues) + 1, length))


def stop(beat: BeatProcess) -> None:
    beat.warm_shutdown()
    beat.wait(30)


def test_two_beats_one_killed_and_restarted_make_one_execution_a_due_time(
    lab: Callable[..., Lab], lab_redis: RedisServer, beats: Callable[..., BeatProcess]
) -> None:
    it = lab()
    it.app_text(TICK + 'app.conf.beat_schedule = {"fast": {"task": "labapp.tick", "schedule": 0.25}}\n')
    worker = it.worker("W", concurrency=2)
    one, two = beats(it, "B1"), beats(it, "B2")
    one.start().wait_ready()
    it.bodies.wait_for("start", count=3)
    two.start().wait_ready()  # some ticks, and a part of one, later

    def more(count: int) -> None:
        seen = len(due_times(it))
        wait_until(lambda: len(due_times(it)) >= seen + count, 60, f"{count} more bodies")

    more(60)
    one.sigkill_group()
    more(40)
    one.start().wait_ready()
    more(70)
    two.sigkill_group()
    more(30)
    stop(one)
    wait_until(lambda: left(lab_redis) == 0, 20, "all messages acknowledged")
    dues = Counter(due_times(it))
    assert max(dues.values()) == 1
    assert worker.log.count("] received") > len(dues)  # both beats did send
    ran = [e for e in it.executions("tick") if e.state is State.SUCCEEDED]
    assert {e.scheduled_at for e in ran} == set(dues) and len(ran) == len(dues)


def test_two_messages_of_one_due_time_have_one_body(lab: Callable[..., Lab], lab_redis: RedisServer) -> None:
    it = lab()
    it.app_text(TICK)
    it.worker("W", concurrency=2)
    it.run(
        "header = {'v': 1, 'src': 'beat', 'entry': 'nightly', 'due': 1_893_456_000_000}\n"
        "for name in ('a', 'b'): tick.apply_async(task_id=name, headers={'guard': header})"
    )
    it.bodies.wait_for("start")
    wait_until(lambda: left(lab_redis) == 0, 20, "both messages acknowledged")
    assert [start["key"] for start in it.starts()] == ["labapp.tick@nightly:1893456000000"]
    (execution,) = it.executions("tick")
    assert execution.state is State.SUCCEEDED and execution.entry == "nightly"


MISFIRE = {"misfire": "each", "overlap": "queue"}


def restarted(it: Lab, beat: BeatProcess, length: int) -> None:
    """Stop a running beat, let some due times pass, start it again: none is missing, none runs twice."""
    it.bodies.wait_for("start", count=3)
    stop(beat)
    last = max(due_times(it))
    wait_until(lambda: time.time() * 1000 > last + 5 * length, 30, "five due times to pass")
    beat.start().wait_ready()
    wait_until(lambda: max(due_times(it)) > last + 6 * length, 30, "the missed ones, and the next")
    stop(beat)
    dues = due_times(it)
    assert len(dues) == len(set(dues))
    missed = [due for due in dues if last < due <= last + 5 * length]
    assert len(missed) == 5
    found = {e.overlap for e in it.executions("tick")}
    assert found == {Overlap.QUEUE}  # the entry's options, at the worker


def test_plain_beat_makes_up_for_what_it_missed(
    lab: Callable[..., Lab], beats: Callable[..., BeatProcess]
) -> None:
    it = lab()
    entry = {"task": "labapp.tick", "schedule": 1.0, "options": {"guard": MISFIRE}}
    it.app_text(TICK + f"app.conf.beat_schedule = {{'each': {entry!r}}}\n")
    it.worker("W")
    restarted(it, beats(it, "B").start().wait_ready(), 1000)
    assert contiguous(due_times(it), 1000)


def test_redbeat(lab: Callable[..., Lab], beats: Callable[..., BeatProcess], lab_redis: RedisServer) -> None:
    pytest.importorskip("redbeat")
    it = lab()
    entry = {"task": "labapp.tick", "schedule": 1.0, "options": {"guard": MISFIRE}}
    url = it.env["BROKER"].rsplit("/", 1)[0] + "/3"
    it.app_text(
        TICK + f"app.conf.beat_schedule = {{'each': {entry!r}}}\n"
        f"app.conf.update(redbeat_redis_url={url!r}, beat_scheduler='redbeat.RedBeatScheduler')\n"
    )
    it.worker("W")
    restarted(it, beats(it, "B", scheduler="redbeat.RedBeatScheduler").start().wait_ready(), 1000)
    rows = it.run(
        "import json; from celery_guard import schedules\n"
        "print(json.dumps([(s.entry, s.last_success_due) for s in schedules(app)]))"
    )
    assert ["each", max(due_times(it))] in json.loads(rows)


SETTINGS = """
SECRET_KEY = "tests-only"
INSTALLED_APPS = ["celery_guard.contrib.django", "django_celery_beat"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {name!r}}}}}
USE_TZ = True
"""


def test_the_database_scheduler(
    lab: Callable[..., Lab], beats: Callable[..., BeatProcess], tmp_path: Path
) -> None:
    pytest.importorskip("django_celery_beat")
    (tmp_path / "beatsettings.py").write_text(SETTINGS.format(name=str(tmp_path / "beat.sqlite3")))
    env = {"DJANGO_SETTINGS_MODULE": "beatsettings"}
    subprocess.run(
        [sys.executable, "-m", "django", "migrate", "-v0"],
        env={**base_environment(), **env, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        cwd=tmp_path,
        check=True,
    )
    scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
    it = lab(env=env)
    it.app_text(TICK + f"app.conf.beat_scheduler = {scheduler!r}\n")
    clocked = it.run(
        "from django_celery_beat.models import *; from django.utils import timezone\n"
        "every = IntervalSchedule.objects.create(every=1, period='seconds')\n"
        f"headers = {json.dumps({'guard': MISFIRE})!r}\n"
        "make = PeriodicTask.objects.create\n"
        "make(name='each', task='labapp.tick', interval=every, headers=headers)\n"
        "at = timezone.now().replace(microsecond=0) + datetime.timedelta(seconds=6)\n"
        "clock = ClockedSchedule.objects.create(clocked_time=at)\n"
        "make(name='once', task='labapp.tick', clocked=clock, one_off=True, headers=headers)\n"
        "print(int(at.timestamp() * 1000))"
    )
    it.worker("W")
    restarted_among(it, beats(it, "B", scheduler=scheduler).start().wait_ready(), int(clocked))


def restarted_among(it: Lab, beat: BeatProcess, clocked: int) -> None:
    wait_until(
        lambda: any(e.entry == "once" and e.state is State.SUCCEEDED for e in it.executions("tick")),
        40,
        "the clocked entry",
    )
    (once,) = [e for e in it.executions("tick") if e.entry == "once"]
    assert once.scheduled_at == clocked
    stop(beat)
    ticks = [e for e in it.executions("tick") if e.entry == "each"]
    last = max(e.scheduled_at or 0 for e in ticks)
    wait_until(lambda: time.time() * 1000 > last + 5000, 30, "five due times to pass")
    beat.start().wait_ready()

    def dues() -> list[int]:
        return [
            e.scheduled_at or 0
            for e in it.executions("tick")
            if e.entry == "each" and e.state is State.SUCCEEDED
        ]

    wait_until(lambda: max(dues()) > last + 6000, 30, "the missed ones, and the next")
    stop(beat)
    assert len([due for due in dues() if last < due <= last + 5000]) == 5
    assert max(Counter(start["key"] for start in it.starts()).values()) == 1
    assert {e.overlap for e in it.executions("tick")} == {Overlap.QUEUE}
    listed = it.run("from celery_guard import schedules; print([s.entry for s in schedules(app)])")
    assert "'each'" in listed
