"""A trigger that is recorded in the caller's own transaction."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from celery_guard.core.contract import (
    Acquired,
    Done,
    Finish,
    Mismatch,
    Reserved,
    Standing,
    Transactional,
    Trigger,
)
from celery_guard.core.errors import StoreUnavailableError
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from tests.stores import django_databases as databases

from django.db import connections, transaction  # isort: skip

pytestmark = pytest.mark.real


def trigger(name: str = "one", **options: Any) -> Trigger:
    return databases.trigger(name, **{"overlap": Overlap.QUEUE, **options})


def test_it_is_there_if_and_only_if_the_caller_commits(alias: str, store: Any) -> None:
    assert isinstance(store, Transactional) and not store.in_transaction()
    with transaction.atomic(using=alias):
        assert store.in_transaction()
        assert store.reserve_joined(trigger("kept"), resend_after=0) == Reserved()
    with transaction.atomic(using=alias):
        store.reserve_joined(trigger("gone"), resend_after=0)
        transaction.set_rollback(True, using=alias)
    assert store.get("kept").state is State.PENDING
    assert store.get("gone") is None
    (sent,) = store.sweep("d", ttl=1000).dispatches
    assert (sent.key, sent.message) == ("kept", "message of kept")


def test_the_caller_may_roll_back_to_a_savepoint(alias: str, store: Any) -> None:
    with transaction.atomic(using=alias):
        store.reserve_joined(trigger("kept"), resend_after=0)
        with contextlib.suppress(KeyError), transaction.atomic(using=alias):
            store.reserve_joined(trigger("gone"), resend_after=0)
            raise KeyError
    assert [found.key for found in store.executions()] == ["kept"]


def test_what_stands_answers_and_another_payload_does_not(alias: str, store: Any) -> None:
    running = store.begin(trigger(), owner="a/1").answer
    assert isinstance(running, Acquired)
    with transaction.atomic(using=alias):
        same = store.reserve_joined(trigger(trigger_id="other"), resend_after=0)
        assert same == Standing(trigger_id="id-one", state=State.RUNNING)
        other = store.reserve_joined(trigger(trigger_id="other", fingerprint="1"), resend_after=0)
        assert other == Mismatch(trigger_id="id-one")
        assert isinstance(store.reserve_joined(trigger("two"), resend_after=0), Reserved)
    assert store.get("two").state is State.PENDING


def test_nobody_waits_for_the_callers_transaction(alias: str, store: Any) -> None:
    """The next trigger of the same lock begins, parks, finishes and wakes, while the transaction stays open."""
    if alias == "sqlite":
        pytest.skip("one writer at a time, for the whole file")
    running = store.begin(trigger("running"), owner="a/1").answer
    assert isinstance(running, Acquired)
    before = store.begin(trigger("before"), owner="b/1").answer
    with transaction.atomic(using=alias):
        store.reserve_joined(trigger("joined"), resend_after=0)
        store.reserve_joined(trigger("running", trigger_id="again"), resend_after=0)
        done: list[Any] = []

        def others() -> None:
            done.append(store.renew([running.lease])[0])
            done.append(store.finish(Finish(lease=running.lease, state=State.SUCCEEDED)))
            done.append(store.begin(trigger("before"), owner="b/2").answer)

        thread = threading.Thread(target=others)
        thread.start()
        thread.join(5)
        assert not thread.is_alive(), f"it waits for the transaction; before it: {before}"
    assert isinstance(done[0], Done) and isinstance(done[1], Done) and isinstance(done[2], Acquired)


def test_of_two_transactions_with_one_key_the_second_gets_the_firsts(alias: str, store: Any) -> None:
    if alias == "sqlite":
        pytest.skip("one writer at a time, for the whole file")
    begun, answers = threading.Event(), []

    def second() -> None:
        with transaction.atomic(using=alias):
            with connections[alias].cursor() as cursor:
                cursor.execute(
                    "SELECT 1 FROM celery_guard_execution"
                )  # its snapshot is older than the first's commit
            begun.set()
            answers.append(store.reserve_joined(trigger(trigger_id="second"), resend_after=0))
        connections[alias].close()

    with transaction.atomic(using=alias):
        store.reserve_joined(trigger(trigger_id="first"), resend_after=0)
        thread = threading.Thread(target=second)
        thread.start()
        assert begun.wait(10)
    thread.join(20)
    assert answers == [Standing(trigger_id="first", state=State.PENDING)]


def test_the_callers_transaction_goes_on_after_an_error_of_the_store(
    alias: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_guard.contrib.django import unit

    def broken(self: Any, record: Any) -> None:
        self.run("SELECT nonsense FROM nowhere")

    with transaction.atomic(using=alias):
        with monkeypatch.context() as patch:
            patch.setattr(unit.SqlUnit, "save", broken)
            with pytest.raises(StoreUnavailableError, match="reserve"):
                store.reserve_joined(trigger("refused"), resend_after=0)
        store.reserve_joined(trigger("taken"), resend_after=0)
    assert [found.key for found in store.executions()] == ["taken"]
