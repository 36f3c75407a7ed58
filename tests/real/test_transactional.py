"""Triggers recorded in the caller's own transaction: an execution for each committed row, whatever dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from celery_guard.testing.groups import base_environment
from celery_guard.testing.processes import wait_until

from .django_project import counts
from .lab import ROOT, Lab

pytestmark = pytest.mark.real

ORDERS = """
from django.db import connection, transaction
@task(record=True, overlap="allow", lease=6)
def confirm(self, n): log("confirm", n=n); return n
def sql(text, *params):
    with connection.cursor() as cursor:
        cursor.execute(text, params)
        return cursor.fetchall() if cursor.description else None
def die(): os.kill(os.getpid(), signal.SIGKILL)
def order(n, fate):
    with transaction.atomic():
        sql("INSERT INTO orders VALUES (%s)", n)
        if fate == "commit": transaction.on_commit(die)  # before the publish, which comes after it
        confirm.delay(n)
        assert store_of(app).get("labapp.confirm#none") is None  # the store's own connection still answers
        if fate == "before": die()
        if fate == "publish": transaction.on_commit(die)
        if fate == "back": transaction.set_rollback(True)
"""


@pytest.fixture
def orders(django_lab: Lab) -> Lab:
    django_lab.app_text(ORDERS)
    django_lab.run('sql("CREATE TABLE orders (n integer)")')
    return django_lab


def publish(it: Lab, fates: list[str], **env: str) -> None:
    """Place an order for each fate, in one process after the other: each goes on where the last one died."""
    done = 0
    path = os.pathsep.join([str(it.folder), str(ROOT)])
    code = (
        "from labapp import *\nimport json\n"
        "for n, fate in json.load(sys.stdin):\n    print(n, flush=True)\n    order(n, fate)\n"
    )
    while done < len(fates):
        left = list(enumerate(fates))[done:]
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env={**base_environment(), **it.env, "NODE": "publisher", "PYTHONPATH": path, **env},
            cwd=it.folder,
            input=json.dumps(left),
            capture_output=True,
            text=True,
        )
        assert ended.returncode in (0, -9), ended.stderr
        done = int(ended.stdout.split()[-1]) + 1


def test_executions_are_the_committed_rows_wherever_the_publisher_dies(orders: Lab) -> None:
    it = orders
    fates = ["", "", "commit", "", "back", "before", "", "publish", "back", ""] * 5
    publish(it, fates)
    it.worker("A", concurrency=2)
    rows = [n for n, fate in enumerate(fates) if fate not in ("before", "back")]
    assert it.run('print(sorted(n for n, in sql("SELECT n FROM orders")))') == str(rows)
    wait_until(lambda: it.bodies.count("confirm") >= len(rows), 60, "every committed row was confirmed")
    wait_until(
        lambda: counts(it) == f"[('succeeded', {len(rows)})]", 30, "all succeeded, nothing else recorded"
    )
    assert sorted(line["n"] for line in it.bodies.read("confirm")) == rows


def test_the_broker_is_away_at_commit(orders: Lab) -> None:
    it = orders
    publish(it, [""], BROKER="redis://127.0.0.1:1/0")
    assert it.run('print(sql("SELECT n FROM orders"))') == "[(0,)]"
    it.worker("A")
    wait_until(lambda: it.bodies.count("confirm") == 1, 30, "the dispatcher sent it")


def test_an_early_acknowledged_body_survives_its_worker(orders: Lab) -> None:
    it = orders
    it.app_text(
        """
@task(record=True, lease=3, overlap="queue", celery={"acks_late": False})
def long(self, n, seconds):
    log("start", n=n, attempt=self.guard.attempt)
    end = time.monotonic() + (seconds if self.guard.attempt == 1 else 0)
    while time.monotonic() < end:
        time.sleep(0.1)
    log("end", n=n)
    return n
"""
    )
    first = it.worker("A")
    it.run("open('id', 'w').write(long.delay(1, 600).id)")
    wait_until(lambda: it.bodies.count("start") == 1, 20, "the body runs")
    import redis

    broker = redis.Redis.from_url(it.env["BROKER"])
    wait_until(lambda: not broker.hlen("unacked"), 5, "acknowledged while it runs")
    first.sigkill_group()
    it.worker("B")
    assert it.run("print(app.AsyncResult(open('id').read()).get(timeout=40))", timeout=60) == "1"
    assert [line["attempt"] for line in it.bodies.read("start")] == [1, 2]


def test_an_early_acknowledged_body_outlives_the_death_of_its_child(orders: Lab) -> None:
    """Nobody else gets the message: the parent sees the child die and the record goes on."""
    it = orders
    it.app_text(
        """
@task(record=True, lease=60, overlap="queue", celery={"acks_late": False})
def fragile(self, n):
    log("start", n=n, attempt=self.guard.attempt)
    if self.guard.attempt == 1: os.kill(os.getpid(), signal.SIGKILL)
    return n
"""
    )
    it.worker("A")
    it.run("open('id', 'w').write(fragile.delay(5).id)")
    assert it.run("print(app.AsyncResult(open('id').read()).get(timeout=20))") == "5"
    assert [line["attempt"] for line in it.bodies.read("start")] == [1, 2]
