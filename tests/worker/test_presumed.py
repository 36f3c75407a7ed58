"""What this process presumes is asked of the store: a lease it could not renew, a record that may be gone."""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import Reject

from celery_guard import Guard, GuardedTask
from celery_guard.core.contract import Acquired, Lease, Refused
from celery_guard.core.errors import StoreUnavailableError
from celery_guard.core.heartbeat import Heartbeat
from celery_guard.core.session import Session
from celery_guard.core.states import State
from celery_guard.testing.waiting import wait_until
from celery_guard.worker.execution import SESSION

from .deliveries import Fleet


class Answers:
    """A store that says what it is told to say."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.renewed = 0

    def renew(self, leases: Any) -> Any:
        self.renewed += len(leases)
        return [self.answer for _ in leases]

    def verify(self, lease: Lease) -> Any:
        return self.answer


def presumed_lost(store: Any) -> Session:
    """A session whose process was stopped for longer than its lease."""
    lease = Lease(key="k", lock_key="l", owner="o/1", token=7, lease=1000)
    acquired = Acquired(lease=lease, attempt=1, expires_at=0)
    return Session(acquired, store, asked_at=0.0, monotonic=lambda: 61.0)


def test_a_takeover_is_learnt_after_a_loss_that_was_presumed() -> None:
    store: Any = Answers(Refused(reason="expired", state=State.RUNNING))
    session, told = presumed_lost(store), list[str]()
    session.on_lost = told.append
    assert session.lost == "it was not renewed in time" and not session.settled
    heartbeat = Heartbeat(store)
    heartbeat._sessions[id(session)] = session
    heartbeat.beat()
    assert not session.settled, "nobody took over yet"
    store.answer = Refused(reason="superseded", state=State.REPLACED)
    heartbeat.beat()
    assert session.lost == "superseded" and told == ["superseded"]
    assert store.renewed == 0, "what is presumed lost is not renewed"


@pytest.mark.parametrize("early", [False, True], ids=["late", "acknowledged early"])
@pytest.mark.parametrize("ends", ["told", "raises"])
def test_a_record_that_is_gone_gives_the_message_back(fleet: Fleet, ends: str, early: bool) -> None:
    """The store was away for longer than the lease, and came back empty."""

    @fleet.app.task(
        shared=False,
        name="t.forgotten",
        base=GuardedTask,
        bind=True,
        guard=Guard(lease=0.5, record=early),
        acks_late=not early,
    )
    def forgotten(self: Any) -> None:
        session = self.request.__dict__[SESSION]
        away = StoreUnavailableError(store="memory", operation="renew", message="away")

        def renew(leases: Any) -> Any:
            raise away

        fleet.store.renew = renew  # type: ignore[method-assign]
        wait_until(lambda: session.lost is not None, 10, "the lease to end")
        del fleet.store.renew
        fleet.store._records.clear()
        fleet.store._locks.clear()
        if ends == "told":
            self.guard.check()
        raise RuntimeError("after the lease")

    forgotten.delay()
    (message,) = fleet.messages()
    trace = fleet.deliver(message)
    if early:  # there is nothing to give back: it is sent again
        assert [again.headers["id"] for again in fleet.messages()] == [message.headers["id"]]
    else:
        assert isinstance(trace.info.retval, Reject) and trace.info.retval.requeue


def test_a_greenlets_time_limit_is_no_exit(fleet: Fleet) -> None:
    """It is raised in the body as no Exception, and ended by the parent's view: not lost, not tried again."""

    class Timeout(BaseException):
        """As gevent has it."""

    @fleet.app.task(shared=False, name="t.limited", base=GuardedTask)
    def limited() -> None:
        raise Timeout

    limited.delay()
    (message,) = fleet.messages()
    request = fleet.request(message)
    with pytest.raises(Timeout):
        fleet.deliver(message, request)
    (execution,) = fleet.store.executions()
    assert execution.state is State.RUNNING
    request.on_timeout(soft=False, timeout=3)
    (execution,) = fleet.store.executions()
    assert execution.state is State.FAILED and execution.lost_attempts == 0
    assert fleet.messages() == []


@pytest.mark.parametrize(
    "headers",
    [{"retries": "abc"}, {"guard": "[" * 100_000}, {"replaced_task_nesting": -1}],
    ids=["retries", "deep", "nesting"],
)
def test_the_parents_view_outlives_any_message(fleet: Fleet, headers: dict[str, Any]) -> None:
    """It runs in the worker's main loop: an error there would end the worker."""

    def key(order: dict[str, Any]) -> str:
        return str(order["id"])

    @fleet.app.task(shared=False, name="t.order", base=GuardedTask, guard=Guard(key=key))
    def work(order: dict[str, Any]) -> None: ...

    fleet.app.send_task._original("t.order", ({"no": "id"},), expires=-1)
    (message,) = fleet.messages()
    message.headers.update(headers)
    request = fleet.request(message)
    request._announce_revoked("expired", False, None, True)
    request._announce_cancelled()
    assert list(fleet.store.executions()) == [], "no key can be made of it, so nothing is recorded"


def test_an_interrupted_one_that_expires_ends_and_lets_the_others_go(fleet: Fleet) -> None:
    ran: list[int] = []

    @fleet.app.task(shared=False, name="t.gives_back", base=GuardedTask, guard=Guard(overlap="queue"))
    def gives_back(n: int) -> None:
        if n == 1:
            raise Reject("not now", requeue=True)
        ran.append(n)

    gives_back.apply_async((1,), expires=60)
    (message,) = fleet.messages()
    fleet.deliver(message)
    fleet.request(message)._announce_revoked("expired", False, None, True)
    gives_back.delay(2)
    fleet.work()
    assert ran == [2]
    assert {e.state for e in fleet.store.executions()} == {State.EXPIRED, State.SUCCEEDED}
