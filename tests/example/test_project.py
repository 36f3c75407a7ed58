"""The Django project in a process of its own, with eager tasks, the memory store and a database that goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("django")

# The store is set before Celery reads the settings: in Celery 5.5 a prefixed setting outranks a later update.
EAGER = """
import django
from django.conf import settings
settings.CELERY_GUARD_STORE = "memory://"
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from example_project.config.celery import app
app.conf.update(task_always_eager=True, task_eager_propagates=True)
from example_project.compensation.models import Airline, Claim, Flight, Run
from example_project.compensation.tasks import assess, import_flights, insert_flights, add_claims
from example_project.compensation.source import flights_of
"""


def in_project(folder: Path, *command: str) -> str:
    """Run Python in the project; returns what it printed."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "example_project.config.settings",
        "EXAMPLE_DATABASE": str(folder / "example.sqlite3"),
    }
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [["check"], ["makemigrations", "--check", "--dry-run"]])
def test_django_finds_nothing_to_say(tmp_path: Path, command: list[str]) -> None:
    in_project(tmp_path, "-m", "example_project.manage", *command)


def test_tasks_repeated_change_nothing(tmp_path: Path) -> None:
    body = """
assert assess.delay("VX").get() == 0  # nothing imported yet
assert import_flights.delay("VX").get() == 5162
assert assess.delay("VX").get() == 95
assert import_flights.delay("VX").get() == 5162  # the answer of the first
assert assess.delay("VX").get() == 0
assert (Flight.objects.count(), Claim.objects.count()) == (5162, 95)
assert [run.outcome for run in Run.objects.all()] == ["done", "done"]
"""
    in_project(tmp_path, "-c", EAGER + body)


def test_a_restart_in_the_middle_writes_only_what_is_missing(tmp_path: Path) -> None:
    body = """
rows = list(flights_of("VX"))
Airline.objects.create(carrier="VX")
assert insert_flights(rows[:2000]) == 2000
assert import_flights.delay("VX").get() == 3162
assert add_claims(list(Flight.objects.all()[:3000]), token=1) == Claim.objects.count() > 0
before = Claim.objects.count()
assert assess.delay("VX").get() == 95 - before
"""
    in_project(tmp_path, "-c", EAGER + body)


def test_the_overview_is_served_empty_and_full(tmp_path: Path) -> None:
    body = """
from django.test import Client
client = Client(headers={"host": "localhost"})
assert b"No airline yet" in client.get("/").content
import_flights.delay("HA"), assess.delay("HA")
page = client.get("/").content
assert b"Hawaiian Airlines" in page and b"342" in page and b"600" in page
"""
    in_project(tmp_path, "-c", EAGER + body)
