"""A Django project on the database store: real workers, a real PostgreSQL, connections cut under a body."""

from __future__ import annotations

import pytest

from celery_guard.testing.processes import wait_until
from celery_guard.testing.servers.postgres import PostgresServer

from .django_project import BODIES, admin, counts
from .lab import Lab

pytestmark = pytest.mark.real


def test_the_guards_connections_are_cut_under_a_body(
    django_lab: Lab, postgres_server: PostgresServer
) -> None:
    it = django_lab
    it.worker("A")
    with admin(postgres_server) as connection:

        def backends() -> set[int]:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            return {row[0] for row in rows}

        it.run("open('id', 'w').write(writes.apply_async((1, 7)).id)")
        own = it.bodies.wait_for("start", n=1)[0]["backend"]
        wait_until(lambda: len(backends()) >= 3, 10, "body, heartbeat and dispatcher to be connected")
        before = len(backends())
        for _ in range(2):
            cut = backends() - {own}
            for pid in cut:
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])
            wait_until(lambda gone=cut: not (backends() & gone), 10, "the cut connections to be gone")
            wait_until(lambda: len(backends()) >= 2, 20, "heartbeat or dispatcher to be back")
        it.bodies.wait_for("end", n=1, timeout=30)
        assert it.run("print(app.AsyncResult(open('id').read()).get(timeout=20))") == "1"
        assert connection.execute("SELECT n FROM business").fetchall() == [(1,)]
        assert it.bodies.count("start", n=1) == 1
        it.run("writes.apply_async((2, 0.1)).get(timeout=30)")
        assert len(backends()) <= before


def test_a_killed_worker_is_replaced_on_the_database_store(
    django_lab: Lab, postgres_server: PostgresServer
) -> None:
    it = django_lab
    a = it.worker("A")
    it.run("writes.apply_async((1, 3))")
    it.bodies.wait_for("start", n=1)
    a.sigkill_group()
    it.worker("B")
    it.bodies.wait_for("end", n=1, timeout=40)
    assert it.bodies.count("start") == 2
    with admin(postgres_server) as connection:
        assert connection.execute("SELECT n FROM business").fetchall() == [(1,)]
    wait_until(lambda: counts(it) == "[('succeeded', 1)]", 10, "one succeeded execution")


def test_a_publish_in_a_transaction_waits_for_commit(django_lab: Lab) -> None:
    it = django_lab
    it.app_text(
        BODIES
        + """
@task(key="{n}", unique_for="1h")
def keyed(self, n): log("keyed", n=n); return n
"""
    )
    code = """
from django.db import transaction
with transaction.atomic():
    kept = keyed.delay_on_commit(1)
    assert kept.id and store_of(app).counts() == {}, store_of(app).counts()
try:
    with transaction.atomic():
        gone = keyed.apply_async_on_commit((2,))
        raise KeyError
except KeyError: pass
states = sorted((t, str(s)) for t, s in store_of(app).counts())
assert states == [("labapp.keyed", "pending")], states
open("id", "w").write(kept.id)
"""
    it.run(code)
    it.worker("A")
    assert it.run("print(app.AsyncResult(open('id').read()).get(timeout=20))") == "1"
    assert it.bodies.count("keyed") == 1
