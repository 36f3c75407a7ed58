"""Which way a message goes through a worker: late, early, or as the task always was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Task
from celery.worker.request import Request
from kombu.utils.imports import symbol_by_name

from celery_guard import Guard, GuardedTask
from celery_guard.worker import strategy
from celery_guard.worker.task import guarding

from .deliveries import Fleet


def way(monkeypatch: pytest.MonkeyPatch, task: Any, header: Any) -> tuple[bool, bool]:
    """How a message with this header is acknowledged: late, and given back when its process dies."""

    def celerys(view: Any, app: Any, consumer: Any) -> Any:
        return lambda message: (view.acks_late, view.reject_on_worker_lost)

    monkeypatch.setattr(strategy, "celery_default", celerys)
    monkeypatch.setattr("celery.worker.strategy.default", celerys)
    message = SimpleNamespace(headers={} if header is None else {"guard": header})
    found: tuple[bool, bool] = strategy.default(task, task.app, None)(message)
    return found


@pytest.mark.parametrize(
    ("header", "late"),
    [
        (None, (False, None)),
        ({"v": 1, "src": "beat", "entry": "e", "due": 5, "soft": True}, (False, None)),
        ({"v": 1, "options": {"overlap": "queue"}}, (True, True)),
        ({"overlap": "queue"}, (True, True)),
        ('{"overlap": "queue"}', (True, True)),
    ],
    ids=["none", "only the due time", "options", "by hand", "as JSON"],
)
def test_a_plain_task_is_late_only_where_its_message_asks_for_the_guard(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, header: Any, late: tuple[bool, bool]
) -> None:
    @fleet.app.task(shared=False, name="t.plain")
    def plain() -> None: ...

    guarding(plain)
    assert way(monkeypatch, plain, header) == late


@pytest.mark.parametrize(
    ("acks_late", "record", "header", "late"),
    [
        (True, True, {"v": 1, "rec": True}, (True, True)),
        (False, True, {"v": 1, "rec": True}, (False, False)),
        (False, True, {"v": 1}, (True, True)),
        (False, True, None, (True, True)),
    ],
)
def test_only_what_the_store_has_is_acknowledged_early(
    fleet: Fleet,
    monkeypatch: pytest.MonkeyPatch,
    acks_late: bool,
    record: bool,
    header: Any,
    late: tuple[bool, bool],
) -> None:
    @fleet.app.task(
        shared=False, name="t.long", base=GuardedTask, guard=Guard(record=record), acks_late=acks_late
    )
    def long() -> None: ...

    assert way(monkeypatch, long, header) == late


def test_a_tasks_own_request_and_strategy_stay_for_what_nobody_guards(fleet: Fleet) -> None:
    """Both are Celery's documented places for a project's own classes."""

    class Own(Request): ...

    def strategy_of_ones_own(view: Any, app: Any, consumer: Any) -> Any:
        return lambda message: view.Request

    class Base(Task):
        abstract = True
        Request = Own
        Strategy = staticmethod(strategy_of_ones_own)

    plain = fleet.app.task(shared=False, name="t.own", base=Base)(body)
    guarding(plain)
    assert strategy._Plain(plain._get_current_object()).Request is Own
    own = symbol_by_name(plain.plain_strategy)
    assert own(strategy._Plain(plain._get_current_object()), fleet.app, None)(None) is Own


def body() -> None:
    """A body."""
