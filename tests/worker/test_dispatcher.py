"""The dispatcher's rounds: it looks again at once where a sweep took as many as it may."""

from __future__ import annotations

from celery_guard import Guard, GuardedTask
from celery_guard.core.contract import Trigger
from celery_guard.core.rules import LOOK_AGAIN
from celery_guard.worker.dispatcher import _LIMIT, _PURGE, Dispatcher

from .deliveries import Fleet


def test_many_that_wait_do_not_make_it_rest_before_it_has_seen_all() -> None:
    fleet = Fleet()

    @fleet.app.task(name="t.body", base=GuardedTask, shared=False, guard=Guard(overlap="queue"))
    def task(n: int) -> int:
        return n

    holder = Trigger(
        key="holder", task="t.body", lock_key="t.body", trigger_id="holder", fingerprint="", message="",
        order=1, lease=10 * LOOK_AGAIN,
    )  # fmt: skip
    fleet.store.begin(holder, owner="holder/1")
    for n in range(_LIMIT + 1):
        task.delay(n)
    fleet.work(2 * _LIMIT)
    fleet.clock.advance(LOOK_AGAIN / 1000)
    dispatcher = Dispatcher(fleet.app)
    assert [dispatcher.sweep(fleet.store) for _ in range(3)] == [True, False, False]
    assert fleet.messages() == []


def test_what_is_over_is_purged_until_nothing_is_left() -> None:
    """However much comes to its end between two looks, a store does not grow for ever."""
    fleet = Fleet(guard_keep=1000)

    @fleet.app.task(name="t.short", base=GuardedTask, shared=False, guard=Guard(overlap="allow"))
    def short() -> None: ...

    for _ in range(2 * _PURGE + 1):
        short.delay()
    fleet.work(4 * _PURGE)
    fleet.clock.advance(10)
    dispatcher = Dispatcher(fleet.app)
    dispatcher._purged_at = float("-inf")
    left = []
    for _ in range(3):
        dispatcher.sweep(fleet.store)
        left.append(len(list(fleet.store.executions(limit=10_000))))
    assert left == [_PURGE + 1, 1, 0]
