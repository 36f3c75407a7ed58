"""What only SQL can get wrong: the caller's transaction, lost sessions, time that grew old in a queue, statements."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_guard.core.contract import Acquired, Answered, Done, Finish, Refused
from celery_guard.core.errors import StoreConfigurationError, StoreUnavailableError
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.scene import SteppedClock
from celery_guard.testing.waiting import wait_until
from tests.stores import django_databases as databases

from django.core import checks  # isort: skip
from django.core.management import call_command  # isort: skip
from django.db import DatabaseError, connections, transaction  # isort: skip
from celery_guard.contrib.django import models  # isort: skip
from celery_guard.contrib.django.commit import in_transaction, on_commit  # isort: skip
from celery_guard.contrib.django.store import DjangoStore  # isort: skip

pytestmark = pytest.mark.real


def acquire(store: DjangoStore, name: str = "one", **options: Any) -> Acquired:
    answer = store.begin(databases.trigger(name, **options), owner=f"{name}/1").answer
    assert isinstance(answer, Acquired), answer
    return answer


# --- the caller's transaction ---------------------------------------------------------------------------


def test_a_begin_outlives_the_callers_rollback(alias: str, store: DjangoStore) -> None:
    with transaction.atomic(using=alias):
        acquire(store)
        transaction.set_rollback(True, using=alias)
    found = store.get("one")
    assert found is not None
    assert found.state is State.RUNNING


def test_the_store_commits_nothing_of_the_caller(alias: str, store: DjangoStore) -> None:
    if alias == "sqlite":
        pytest.skip("one writer at a time: the next test")
    with transaction.atomic(using=alias):
        models.Counter(task="the caller's", state="failed", count=1).save(using=alias)
        held = acquire(store)
        assert isinstance(store.finish(Finish(lease=held.lease, state=State.SUCCEEDED)), Done)
        transaction.set_rollback(True, using=alias)
    assert not models.Counter._default_manager.using(alias).exists()
    found = store.get("one")
    assert found is not None
    assert found.state is State.SUCCEEDED


def test_on_sqlite_the_callers_own_write_is_named_after_a_bounded_wait(
    alias: str, store: DjangoStore
) -> None:
    if alias != "sqlite":
        pytest.skip("SQLite alone has one writer for the whole file")
    with transaction.atomic(using=alias):
        models.Counter(task="the caller's", state="failed", count=1).save(using=alias)
        with pytest.raises(StoreUnavailableError, match="This thread has a transaction open"):
            store.begin(databases.trigger(), owner="a/1")
    assert models.Counter._default_manager.using(alias).count() == 1
    acquire(store)


def test_the_store_works_while_the_callers_transaction_is_broken(alias: str, store: DjangoStore) -> None:
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        with pytest.raises(DatabaseError):
            cursor.execute("SELECT nonsense FROM nowhere")
        held = acquire(store)
        assert isinstance(store.verify(held.lease), Done)
        assert in_transaction(alias)
        transaction.set_rollback(True, using=alias)
    assert not in_transaction(alias)
    assert store.get("one") is not None


def test_on_commit_waits_for_the_callers_commit(alias: str) -> None:
    called = []
    on_commit(lambda: called.append("at once"), using=alias)
    with transaction.atomic(using=alias):
        on_commit(lambda: called.append("committed"), using=alias)
        assert called == ["at once"]
    with transaction.atomic(using=alias):
        on_commit(lambda: called.append("never"), using=alias)
        transaction.set_rollback(True, using=alias)
    assert called == ["at once", "committed"]


# --- connections ----------------------------------------------------------------------------------------


def sessions(alias: str) -> set[int]:
    """Sessions on the server beside the caller's own."""
    sql = {
        "postgres": "SELECT pid FROM pg_stat_activity WHERE usename = 'guard' AND pid <> pg_backend_pid()",
        "mariadb": "SELECT id FROM information_schema.processlist WHERE user = 'guard' AND id <> CONNECTION_ID()",
    }
    with connections[alias].cursor() as cursor:
        cursor.execute(sql[alias])
        return {row[0] for row in cursor.fetchall()}


def kill(alias: str, session: int) -> None:
    sql = {"postgres": "SELECT pg_terminate_backend(%s)", "mariadb": "KILL %s"}
    with connections[alias].cursor() as cursor:
        cursor.execute(sql[alias], [session])


def test_a_killed_session_is_replaced_and_the_count_returns(alias: str, store: DjangoStore) -> None:
    if alias == "sqlite":
        pytest.skip("no sessions")
    before = sessions(alias)
    held = acquire(store)
    mine = sessions(alias) - before
    assert len(mine) == 1
    with transaction.atomic(using=alias):
        models.Counter(task="the caller's", state="failed", count=1).save(using=alias)
        kill(alias, mine.pop())
        assert store.renew([held.lease]) == [Done(state=State.RUNNING)]
        assert isinstance(store.finish(Finish(lease=held.lease, state=State.SUCCEEDED)), Done)
    assert models.Counter._default_manager.using(alias).count() == 1
    assert wait_until(lambda: len(sessions(alias) - before) == 1, 10)
    store.close()
    assert wait_until(lambda: sessions(alias) == before, 10) is not None


def test_threads_share_connections_and_close_lets_go_of_all(alias: str, store: DjangoStore) -> None:
    before = set() if alias == "sqlite" else sessions(alias)
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda n: acquire(store, f"{n}", overlap=Overlap.ALLOW).lease.key, range(40)))
    assert len(keys) == 40
    for one in connections.all(initialized_only=True):
        assert not one.in_atomic_block
    if alias != "sqlite":
        assert len(sessions(alias) - before) <= 8
        store.close()
        assert wait_until(lambda: sessions(alias) == before, 10) is not None


def test_a_fork_has_connections_of_its_own(alias: str, store: DjangoStore) -> None:
    acquire(store)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = (
                0 if isinstance(store.begin(databases.trigger("child"), owner="b/1").answer, Answered) else 2
            )
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    child_record, mine = store.get("child"), store.get("one")
    assert child_record is not None
    assert mine is not None
    assert (child_record.state, mine.state) == (State.SKIPPED, State.RUNNING)


def test_no_transaction_is_left_behind_by_an_exception(alias: str, store: DjangoStore) -> None:
    class Stopped(BaseException):
        pass

    def stop(sql: str) -> None:
        if sql.startswith(("INSERT INTO", "UPDATE")) and "execution" in sql:
            raise Stopped

    breaking = DjangoStore(alias, watch=stop)
    with pytest.raises(Stopped):
        breaking.begin(databases.trigger(), owner="a/1")
    assert store.get("one") is None
    acquire(store)
    breaking.close()


# --- rows and time --------------------------------------------------------------------------------------


def test_one_of_many_threads_wins(alias: str) -> None:
    stores = [DjangoStore(alias) for _ in range(16)]
    with ThreadPoolExecutor(len(stores)) as pool:
        for number in range(10):
            gate = threading.Barrier(len(stores))

            def compete(n: int, number: int = number, gate: threading.Barrier = gate) -> Any:
                gate.wait()
                return (
                    stores[n]
                    .begin(databases.trigger(f"{number}-{n}", lock_key=f"{number}"), owner=f"{n}/1")
                    .answer
                )

            answers = list(pool.map(compete, range(len(stores))))
            assert sum(isinstance(answer, Acquired) for answer in answers) == 1
            assert sum(isinstance(answer, Answered) for answer in answers) == len(stores) - 1
    for one in stores:
        one.close()


def test_one_key_has_one_living_execution_under_two_lock_keys(alias: str) -> None:
    """The lock does not serialise these: the unique column does."""
    stores = [DjangoStore(alias) for _ in range(8)]
    with ThreadPoolExecutor(len(stores)) as pool:
        for number in range(10):
            gate = threading.Barrier(len(stores))

            def compete(n: int, number: int = number, gate: threading.Barrier = gate) -> Any:
                gate.wait()
                one = databases.trigger(f"{number}", lock_key=f"{number}-{n}", trigger_id=f"{n}")
                return stores[n].begin(one, owner=f"{n}/1").answer

            answers = list(pool.map(compete, range(len(stores))))
            assert sum(isinstance(answer, Acquired) for answer in answers) == 1, answers
    for one in stores:
        one.close()


def test_time_is_read_after_the_wait_for_the_lock(alias: str, store: DjangoStore) -> None:
    """
    holder                         rival
    ------                         -----
    takes the lock's row
                                   asks for it, waits
    ... the lease ends ...
    lets go
                                   has it: the time is now, not when it asked
    """
    if alias == "sqlite":
        pytest.skip("the host's clock, read once the file is locked")
    held = acquire(store, lease=1500)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=alias):
            list(models.Lock._default_manager.using(alias).select_for_update())
            rival = pool.submit(store.begin, databases.trigger("rival"), owner="rival/1")
            wait_until(lambda: store.now() > held.expires_at, 10, interval=0.02)
            assert not rival.done()
        assert isinstance(rival.result(20).answer, Acquired)


def test_time_is_read_after_the_wait_for_an_execution(alias: str, store: DjangoStore) -> None:
    if alias == "sqlite":
        pytest.skip("the host's clock, read once the file is locked")
    for write in (store.renew, lambda leases: [store.checkpoint(leases[0], "")]):
        databases.wipe(alias)
        held = acquire(store, lease=1500)
        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic(using=alias):
                list(models.Execution._default_manager.using(alias).select_for_update())
                late = pool.submit(write, [held.lease])
                wait_until(lambda end=held.expires_at: store.now() > end, 10, interval=0.02)
                assert not late.done()
            assert late.result(20) == [Refused(reason="expired", state=State.RUNNING)]


def test_history_is_kept_and_counted(alias: str) -> None:
    clock = SteppedClock()
    store = DjangoStore(alias, clock=clock)
    for number in range(3):
        held = acquire(store, trigger_id=f"{number}", keep=1000)
        store.finish(Finish(lease=held.lease, state=State.FAILED))
        clock.elapse(10)
    found = list(store.executions())
    assert [one.previous for one in found] == [found[1].number, found[2].number, None]
    assert store.get("one") == found[0]
    clock.elapse(975)
    assert store.purge() == 1
    assert store.counts() == {("task", State.FAILED): 3}
    clock.elapse(100)
    assert store.purge() == 2
    assert store.purge() == 0
    assert store.counts() == {("task", State.FAILED): 3}
    store.close()


def test_a_withdrawn_reservation_gives_the_execution_before_it_back(alias: str, store: DjangoStore) -> None:
    held = acquire(store)
    store.finish(Finish(lease=held.lease, state=State.SUCCEEDED, result="42"))
    other = databases.trigger(trigger_id="other")
    store.reserve(other, resend_after=1000)
    assert store.withdraw("one", "other")
    answer = store.begin(databases.trigger(), owner="a/2").answer
    assert isinstance(answer, Answered)
    assert answer.result == "42"


@pytest.mark.parametrize(
    "text", ["", "a\x00b", "\ud800", "\x1bjson:{}", "naïve 🙂", "'; DROP TABLE x; --%s", "a\\'\n"]
)
def test_opaque_text_comes_back_as_it_was(alias: str, store: DjangoStore, text: str) -> None:
    held = acquire(store, message=text)
    store.checkpoint(held.lease, text)
    found = store.get("one")
    assert found is not None
    assert found.checkpoint == text
    store.finish(Finish(lease=held.lease, state=State.SUCCEEDED, result=text, reason=text))
    answer = store.begin(databases.trigger(message=text), owner="a/2").answer
    assert isinstance(answer, Answered)
    assert answer.result == text


def test_a_key_that_no_column_holds_is_refused(alias: str, store: DjangoStore) -> None:
    for bad in ("x" * 256, "a\x00b"):
        with pytest.raises(StoreConfigurationError, match="cannot be stored"):
            store.begin(databases.trigger(trigger_id=bad), owner="a/1")
    acquire(store)


def test_the_set_up_is_looked_at(alias: str, store: DjangoStore) -> None:
    text = " ".join(store.check())
    assert {"sqlite": "synchronous=0", "postgres": "fsync=off", "mariadb": "commit=2"}[alias] in text


# --- statements -----------------------------------------------------------------------------------------


class Counted:
    """Counts what a store sends."""

    def __init__(self, alias: str) -> None:
        self.sent: list[str] = []
        self.store = DjangoStore(alias, watch=self.sent.append)

    def of(self, call: Callable[[], object]) -> int:
        self.sent.clear()
        call()
        ends = ("BEGIN", "START", "COMMIT")
        return len([sql for sql in self.sent if not sql.startswith(ends)])


def test_the_number_of_statements_is_fixed(alias: str) -> None:
    counted = Counted(alias)
    store = counted.store
    warm = acquire(store, "warm")
    store.finish(Finish(lease=warm.lease, state=State.SUCCEEDED))
    for number in range(3):
        held: list[Acquired] = []
        assert counted.of(lambda n=number, held=held: held.append(acquire(store, f"{n}"))) == 5
        lease = held[0].lease
        assert counted.of(lambda n=number: store.begin(databases.trigger(f"{n}"), owner="copy/1")) == 2
        assert counted.of(lambda n=number: store.begin(databases.trigger(f"rival-{n}"), owner="rival/1")) <= 5
        assert counted.of(lambda lease=lease: store.renew([lease])) == 2
        assert counted.of(lambda lease=lease: store.verify(lease)) == 1
        assert counted.of(lambda lease=lease: store.checkpoint(lease, "10")) == 2
        assert counted.of(lambda lease=lease: store.finish(Finish(lease=lease, state=State.SUCCEEDED))) == 5
        assert counted.of(lambda n=number: store.begin(databases.trigger(f"{n}"), owner="copy/2")) == 2
    for count in (1, 10, 100):
        many = [acquire(store, f"{count}-{n}", overlap=Overlap.ALLOW).lease for n in range(count)]
        assert counted.of(lambda many=many: store.renew(many)) == 2
        assert len(counted.sent) == 4
    assert counted.of(lambda: store.get("0")) == 1
    assert len(counted.sent) == 1
    store.close()


# --- set-ups that cannot work ---------------------------------------------------------------------------


def test_an_unknown_alias_is_named() -> None:
    with pytest.raises(StoreConfigurationError, match=r"no alias 'nowhere'; it has .*default"):
        DjangoStore("nowhere").now()


def test_memory_of_one_connection_is_refused() -> None:
    databases.add("memory", {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"})
    with pytest.raises(StoreConfigurationError, match="give the alias a file"):
        DjangoStore("memory").get("one")
    databases.remove("memory")


def test_shared_memory_of_a_test_runner_works() -> None:
    name = "file:memorydb_guard?mode=memory&cache=shared"
    databases.add("shared", {"ENGINE": "django.db.backends.sqlite3", "NAME": name})
    call_command("migrate", "celery_guard", database="shared", verbosity=0)
    store = DjangoStore("shared")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: acquire(store, f"{n}", overlap=Overlap.ALLOW), range(40)))
    store.close()
    databases.remove("shared")


def test_missing_tables_say_migrate(request: pytest.FixtureRequest, database: str) -> None:
    call_command("migrate", "celery_guard", "zero", database=database, verbosity=0)
    try:
        for call in (
            lambda s: s.get("one"),
            lambda s: s.begin(databases.trigger(), owner="a/1"),
            lambda s: s.check(),
        ):
            with pytest.raises(StoreConfigurationError, match=f"migrate celery_guard --database {database}"):
                call(DjangoStore(database))
    finally:
        call_command("migrate", "celery_guard", database=database, verbosity=0)


def test_a_server_that_is_away_is_unavailable() -> None:
    gone = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "x",
        "USER": "x",
        "HOST": "127.0.0.1",
        "PORT": "9",
    }
    databases.add("gone", gone)
    with pytest.raises(StoreUnavailableError, match="django://gone is not available during begin") as caught:
        DjangoStore("gone").begin(databases.trigger(), owner="a/1")
    assert caught.value.__cause__ is not None
    databases.remove("gone")


@pytest.mark.parametrize(
    ("url", "ids"),
    [
        ("django://default", []),
        ("django://nowhere", ["celery_guard.E001"]),
        ("redis://localhost", []),
        (None, []),
    ],
)
def test_system_checks(settings_of: Callable[..., None], url: str | None, ids: list[str]) -> None:
    settings_of(CELERY_GUARD_STORE=url)
    assert [found.id for found in checks.run_checks(tags=["celery_guard"])] == ids


@pytest.fixture
def settings_of() -> Iterator[Callable[..., None]]:
    from django.test import override_settings

    active = []

    def change(**values: Any) -> None:
        override = override_settings(**values)
        override.enable()
        active.append(override)

    yield change
    for override in active:
        override.disable()
