"""What a delivery becomes: every way out of a body, copies, duplicates, and what callers are told."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import Ignore, Reject

from celery_guard import (
    ExecutionDeadError,
    Guard,
    GuardedTask,
    LeaseLostError,
    LockTimeoutError,
    PayloadMismatchError,
    State,
    outcome_of,
)

from .deliveries import Fleet


def only(fleet: Fleet, task: str | None = None) -> Any:
    (execution,) = fleet.store.executions(task=task)
    return execution


def define(fleet: Fleet, body: Any, guard: Any = None, **options: Any) -> Any:
    body.__name__ = "body"
    base = options.pop("base", GuardedTask)
    if guard is not None:
        options["guard"] = guard
    return fleet.app.task(bind=True, base=base, shared=False, name=options.pop("name", "t.body"), **options)(
        body
    )


def test_success_is_stored_and_a_copy_gets_it_without_a_second_body(fleet: Fleet) -> None:
    bodies = []
    task = define(fleet, lambda self, x: bodies.append(self.guard.token) or {"x": x})
    result = task.delay(3)
    (message,) = fleet.messages()
    assert fleet.deliver(message).retval == {"x": 3}
    assert fleet.deliver(message).retval == {"x": 3}
    assert len(bodies) == 1 and result.get(timeout=1) == {"x": 3}
    assert only(fleet).state is State.SUCCEEDED


def test_failure_is_raised_again_for_a_copy_whose_failure_nobody_reported(fleet: Fleet) -> None:
    def body(self: Any) -> None:
        bodies.append(1)
        raise KeyError("gone")

    bodies: list[int] = []
    task = define(fleet, body)
    result = task.delay()
    (message,) = fleet.messages()
    fleet.deliver(message)
    fleet.app.backend.delete(fleet.app.backend.get_key_for_task(result.id))
    fleet.deliver(message)
    assert len(bodies) == 1
    with pytest.raises(KeyError):
        result.get(timeout=1)


@pytest.mark.parametrize(
    ("raised", "state"),
    [
        (Ignore("no"), State.SUCCEEDED),
        (Reject("no", requeue=False), State.FAILED),
        (Reject("later", requeue=True), State.INTERRUPTED),
        (ValueError("x"), State.FAILED),
    ],
    ids=repr,
)
def test_every_way_out_releases_the_lock(fleet: Fleet, raised: Exception, state: State) -> None:
    def body(self: Any, n: int) -> int:
        if n == 1:
            raise raised
        return n

    task = define(fleet, body)
    task.delay(1)
    for message in fleet.messages():
        fleet.deliver(message)
    assert only(fleet).state is state
    other = task.delay(2)
    fleet.deliver(fleet.messages()[-1])
    assert other.get(timeout=1) == 2


def test_a_body_told_to_exit_is_lost_and_bounded(fleet: Fleet) -> None:
    def body(self: Any) -> None:
        raise SystemExit(1)

    task = define(fleet, body, Guard(max_attempts=2))
    result = task.delay()
    with pytest.raises(SystemExit):
        fleet.work()
    with pytest.raises(SystemExit):
        fleet.work()
    fleet.work()
    assert only(fleet).state is State.DEAD
    with pytest.raises(ExecutionDeadError):
        result.get(timeout=1)


def test_a_retry_keeps_its_execution_and_is_published_only_once_recorded(fleet: Fleet) -> None:
    seen = []

    def body(self: Any) -> str:
        seen.append((self.request.retries, self.guard.attempt, self.guard.key))
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return "done"

    task = define(fleet, body, max_retries=2)
    result = task.delay()
    (first,) = fleet.messages()
    fleet.deliver(first)
    assert only(fleet).state is State.RETRYING
    fleet.deliver(first)  # a copy of the first try
    assert len(seen) == 1
    fleet.work()
    assert [(r, a) for r, a, _ in seen] == [(0, 1), (1, 2), (2, 3)] and len({k for *_, k in seen}) == 1
    assert result.get(timeout=1) == "done"


def test_a_lost_retry_message_is_sent_again(fleet: Fleet) -> None:
    def body(self: Any) -> str:
        if self.request.retries < 1:
            raise self.retry(countdown=5)
        return "done"

    task = define(fleet, body)
    result = task.delay()
    fleet.deliver(fleet.messages()[0])
    assert len(fleet.messages()) == 1  # and lost
    fleet.clock.advance(11)
    assert fleet.sweep() == 1
    fleet.work()
    assert result.get(timeout=1) == "done"


def test_the_lock_between_two_tries(fleet: Fleet) -> None:
    def body(self: Any, n: int) -> int:
        if n == 1 and self.request.retries == 0:
            raise self.retry(countdown=5)
        return n

    for hold, expected in (("release", 2), ("hold", "skipped")):
        it = Fleet()
        task = define(it, body, Guard(lock_on_retry=hold))
        task.delay(1)
        it.deliver(it.messages()[0])
        own = it.messages()
        rival = task.delay(2)
        it.work()
        value = rival.get(timeout=1)
        assert (outcome_of(value) or {}).get("celery_guard", value) == expected
        assert it.deliver(own[0]).retval == 1  # the next try gets its lock in both


def test_autoretry_does_not_swallow_a_lost_lease(fleet: Fleet) -> None:
    def body(self: Any) -> None:
        fleet.clock.advance(61)
        self.guard.check(ask_store=True)

    task = define(fleet, body, autoretry_for=(Exception,))
    task.delay()
    (message,) = fleet.messages()
    trace = fleet.deliver(message)
    assert trace.info.state == "IGNORED"
    assert fleet.messages() == []  # no retry was sent


def test_a_stale_attempt_cannot_report_a_result(fleet: Fleet) -> None:
    def body(self: Any) -> str:
        if self.guard.attempt == 1:
            fleet.clock.advance(61)
            fleet.sweep()
            fleet.work()  # the successor runs to its end meanwhile
            return "stale"
        return "fresh"

    task = define(fleet, body)
    result = task.delay()
    fleet.deliver(fleet.messages()[0])
    assert result.get(timeout=1) == "fresh"
    assert only(fleet).state is State.SUCCEEDED


def test_a_record_lost_under_a_running_body_gives_the_message_back(fleet: Fleet) -> None:
    def body(self: Any) -> None:
        fleet.store._records.clear()

    task = define(fleet, body)
    task.delay()
    trace = fleet.deliver(fleet.messages()[0])
    assert trace.info.state == "REJECTED" and trace.info.retval.requeue is True


def test_skip_answers_with_a_marker_and_stops_its_chain(fleet: Fleet) -> None:
    inner: list[Any] = []

    def body(self: Any, n: int) -> int:
        if n == 1:
            inner.append(chain(task.s(2), after.s(), after.s()).apply_async())
            fleet.work()
        return n

    task = define(fleet, body)
    after = define(fleet, lambda self, x: ran.append(x), name="t.after", guard=Guard(overlap="allow"))
    ran: list[Any] = []
    task.delay(1)
    fleet.work()
    last = inner[0]
    marker = outcome_of(last.get(timeout=1))
    assert marker and marker["celery_guard"] == "skipped" and marker["by"].startswith("t.body#")
    assert outcome_of(last.parent.get(timeout=1)) and ran == []


def test_a_skipped_member_counts_in_a_chord(fleet: Fleet) -> None:
    def body(self: Any, n: int) -> int:
        if n == 0:
            chord([task.s(1), task.s(2)])(total.s())
            fleet.work()
        return n

    task = define(fleet, body)
    got: list[Any] = []
    total = define(fleet, lambda self, xs: got.append(xs), name="t.total", guard=Guard(overlap="allow"))
    task.delay(0)
    fleet.work(300)
    assert len(got) == 1 and [outcome_of(x)["celery_guard"] for x in got[0]] == ["skipped"] * 2  # type: ignore[index]


def test_waiters_run_in_order_and_a_timeout_reaches_the_caller(fleet: Fleet) -> None:
    order: list[int] = []

    def body(self: Any, n: int) -> int:
        order.append(n)
        if n == 0:
            results.extend(task.delay(i) for i in (1, 2))
            fleet.work()
            fleet.clock.advance(1)
        return n

    results: list[Any] = []
    task = define(fleet, body, Guard(overlap="wait", wait_for="30s"))
    task.delay(0)
    fleet.work()
    assert order == [0, 1, 2] and [r.get(timeout=1) for r in results] == [1, 2]

    def hang(self: Any, n: int) -> int:
        if n == 0:
            results[:] = [late.delay(1)]
            fleet.work()
            fleet.clock.advance(40)
            fleet.store.renew([self.guard.lease])
            fleet.sweep()
            fleet.work()
        return n

    late = define(fleet, hang, Guard(overlap="wait", wait_for="30s", lease="50s"), name="t.late")
    late.delay(0)
    fleet.work()
    with pytest.raises(LockTimeoutError):
        results[0].get(timeout=1)


def test_another_trigger_of_a_running_key_gets_its_result(fleet: Fleet) -> None:
    def body(self: Any, n: int) -> str:
        bodies.append(n)
        if len(bodies) == 1:
            # published where the reservation was not seen
            other.append(fleet.app.send_task._original("t.body", (n,)))
            fleet.work()
        return "one"

    bodies: list[int] = []
    other: list[Any] = []
    task = define(fleet, body, Guard(key="{n}", unique_for="1h"))
    mine = task.delay(7)
    fleet.work()
    assert bodies == [7]
    assert mine.get(timeout=1) == other[0].get(timeout=1) == "one"
    assert task.delay(7).id == mine.id  # the handle of the execution that stands for it
    fleet.clock.advance(3601)
    assert task.delay(7).id != mine.id


def test_one_key_with_another_payload_is_an_error(fleet: Fleet) -> None:
    task = define(fleet, lambda self, n, note="": n, Guard(key="{n}", unique_for="1h"))
    task.delay(1, note="a")
    with pytest.raises(PayloadMismatchError):
        task.delay(1, note="b")
    result = fleet.app.send_task._original("t.body", (1,), {"note": "c"})
    fleet.work()
    with pytest.raises(PayloadMismatchError):
        result.get(timeout=1)


def test_a_lease_lost_error_of_somebody_else_is_a_failure_like_any(fleet: Fleet) -> None:
    def body(self: Any) -> None:
        raise LeaseLostError(key="other", token=1, reason="theirs")

    task = define(fleet, body)
    result = task.delay()
    fleet.work()
    with pytest.raises(LeaseLostError):
        result.get(timeout=1)


def test_an_unserialisable_result_fails_and_frees(fleet: Fleet) -> None:
    task = define(fleet, lambda self: object())
    task.delay()
    fleet.work()
    assert only(fleet).state is State.FAILED


def test_task_replace_goes_on_as_the_same_execution(fleet: Fleet) -> None:
    def body(self: Any, n: int) -> int:
        if n < 3:
            raise self.replace(task.s(n + 1))
        return n

    task = define(fleet, body)
    result = task.delay(1)
    fleet.work()
    assert result.get(timeout=1) == 3
    assert only(fleet).state is State.SUCCEEDED


def test_store_down_defers_the_message_and_spends_no_retry(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_guard import StoreUnavailableError

    def down(*args: Any, **kwargs: Any) -> None:
        raise StoreUnavailableError(store="x", operation="begin", message="down")

    task = define(fleet, lambda self: self.request.retries)
    result = task.delay()
    (message,) = fleet.messages()
    with monkeypatch.context() as patch:
        patch.setattr(fleet.store, "begin", down)
        assert fleet.deliver(message).info.state == "IGNORED"
        (deferred,) = fleet.messages()
    assert deferred.headers["eta"] and deferred.headers["guard"]["deferrals"] == 1
    fleet.deliver(deferred)
    assert result.get(timeout=1) == 0


def test_store_down_runs_unguarded_only_where_asked(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery_guard import StoreUnavailableError

    def down(*args: Any, **kwargs: Any) -> None:
        raise StoreUnavailableError(store="x", operation="begin", message="down")

    task = define(fleet, lambda self: (self.guard.token, self.guard.guarded), Guard(on_store_error="run"))
    task.delay()
    (message,) = fleet.messages()
    monkeypatch.setattr(fleet.store, "begin", down)
    assert fleet.deliver(message).retval == (None, False)
