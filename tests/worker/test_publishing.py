"""Where options come from, what is refused and where, and what a publish leaves behind."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from celery import Celery, Task

from celery_guard import (
    ConfigurationError,
    Guard,
    GuardedTask,
    KeyArgumentError,
    KeyTemplateError,
    OptionError,
    State,
    StoreConfigurationError,
)
from celery_guard.worker.beat import follow
from celery_guard.worker.install import install
from celery_guard.worker.runtime import make_store
from celery_guard.worker.task import guarding

from .deliveries import Fleet


def named(fleet: Fleet, **options: Any) -> Any:
    def work(self: Any, tenant: int = 1, note: Any = None) -> Any:
        return self.guard.key if "guard_session" in self.request.__dict__ else "plain"

    return fleet.app.task(bind=True, shared=False, name="t.work", **options)(work)


def key_of(fleet: Fleet) -> str:
    (execution,) = fleet.store.executions()
    return execution.key


# --- one header, from everywhere ------------------------------------------------------------------------


def test_options_of_a_publisher_reach_a_worker_through_the_header(fleet: Fleet) -> None:
    task = named(fleet, base=GuardedTask)
    task.apply_async((7,), guard={"key": "k{tenant}", "unique_for": "1h"})
    (message,) = fleet.messages()
    header = message.headers["guard"]
    assert header["v"] == 1 and header["options"] == {"key": "k{tenant}", "unique_for": "1h"}
    assert json.loads(json.dumps(header)) == header
    fleet.deliver(message)
    assert key_of(fleet) == "t.work:k7"


@pytest.mark.parametrize(
    "header", [{"overlap": "allow", "key": "{tenant}"}, '{"overlap": "allow", "key": "{tenant}"}']
)
def test_a_header_written_by_hand_guards_a_plain_task(fleet: Fleet, header: Any) -> None:
    """The only place that django-celery-beat keeps."""
    task = named(fleet)
    install(fleet.app)
    guarding(task)
    task.apply_async((7,), headers={"guard": header})
    (message,) = fleet.messages()
    assert fleet.deliver(message).retval == "t.work:7"
    task.delay(7)
    (plain,) = fleet.messages()
    assert "guard" not in plain.headers
    assert fleet.deliver(plain).retval == "plain"


def test_a_name_sent_from_outside_is_guarded_by_the_worker(fleet: Fleet) -> None:
    """A publisher that knows neither the task nor the guard."""
    named(fleet, base=GuardedTask, guard=Guard(scope="{tenant}"))
    fleet.app.send_task._original("t.work", (3,))
    fleet.work()
    (execution,) = fleet.store.executions()
    assert execution.lock_key == "t.work:3" and execution.state is State.SUCCEEDED


def test_options_are_carried_before_anything_is_bound() -> None:
    """A script that imports the tasks and sends by name at once: the application is not finalized yet."""
    app = Celery("unbound", broker="memory://", set_as_current=False)

    def work(tenant: int) -> None: ...

    app.task(base=GuardedTask, name="t.unbound", shared=False)(work)
    app.conf.guard_store = "memory://"
    assert app.send_task.__func__ is Celery.send_task
    with app.connection_for_write() as connection:
        for options in ({"overlap": "queue"}, {"overlp": "queue"}):
            app.send_task("t.unbound", (3,), guard=options, connection=connection)
        queue = connection.SimpleQueue("celery")
        right, wrong = (queue.get_nowait().headers["guard"] for _ in range(2))
    assert right["options"] == {"overlap": "queue"} and right["at"] > 0
    assert wrong == {"overlp": "queue"}, "its worker fails it"


def test_the_setting_guard_tasks_guards_by_name_and_pattern() -> None:
    fleet = Fleet(guard_tasks={"t.*": {"scope": "{tenant}"}})
    install(fleet.app)
    task = named(fleet)
    guarding(task)
    task.delay(4)
    fleet.work()
    (execution,) = fleet.store.executions()
    assert execution.lock_key == "t.work:4"


def test_as_task_cls_a_task_that_declares_nothing_excludes_nothing() -> None:
    fleet = Fleet(task_cls=GuardedTask)
    task = named(fleet)
    assert str(task.guard_options.overlap) == "allow"
    assert fleet.app.tasks["celery.backend_cleanup"].guard_options is None
    task.delay()
    fleet.work()
    assert fleet.store.counts() == {("t.work", State.SUCCEEDED): 1}


def test_a_custom_call_is_inside_the_guard_even_where_it_skips_super(fleet: Fleet) -> None:
    class Custom(GuardedTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return "custom", self.run(*args, **kwargs)

    task = named(fleet, base=Custom)
    task.delay()
    (message,) = fleet.messages()
    assert fleet.deliver(message).retval[0] == "custom"
    assert fleet.deliver(message).retval[0] == "custom"  # the copy, from the store
    assert fleet.store.counts() == {("t.work", State.SUCCEEDED): 1}


def test_patching_call_and_run_as_tracers_do_keeps_the_guard(fleet: Fleet) -> None:
    task = named(fleet, base=GuardedTask)._get_current_object()
    calls = []
    original = type(task).__call__

    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("call")
        return original(self, *args, **kwargs)

    type(task).__call__ = patched
    run = task.run
    task.run = lambda *a, **k: calls.append("run") or run(*a, **k)
    task.delay()
    fleet.work()
    assert calls == ["call", "run"]
    assert fleet.store.counts() == {("t.work", State.SUCCEEDED): 1}


def test_a_plain_call_is_a_plain_call(fleet: Fleet) -> None:
    task = named(fleet, base=GuardedTask)
    assert task(1) == "plain"
    assert fleet.store.counts() == {}


# --- refused where it is written ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overlpa": "skip"}, "'overlap'"),
        ({"overlap": "quue"}, "'queue'"),
        ({"wait_for": "5m"}, "overlap='skip'"),
        ({"lease": "soon"}, "lease"),
        ({"misfire": "onec"}, "once, skip, each"),
    ],
)
def test_bad_options_fail_alike_wherever_they_are_written(
    fleet: Fleet, options: dict[str, Any], words: str
) -> None:
    task = named(fleet, base=GuardedTask)
    places = [
        lambda: task.apply_async(guard=options),
        lambda: task.apply_async(headers={"guard": options}),
        lambda: fleet.app.send_task("t.elsewhere", guard=options),
    ]
    for write in places:
        with pytest.raises(OptionError, match="(?s)" + words):
            write()
    assert fleet.messages() == []


def test_a_hostile_header_fails_its_task_and_runs_nothing(fleet: Fleet) -> None:
    named(fleet, base=GuardedTask)
    for header in (
        [1],
        {"v": 2},
        {"v": 1, "key": "a\nb"},
        {"v": 1, "due": -1},
        {"v": 1, "options": {"x": 1}},
        "{",
    ):
        result = fleet.app.send_task._original("t.work", (), headers={"guard": header})
        fleet.work()
        with pytest.raises(OptionError):
            result.get(timeout=1)
    assert fleet.store.counts() == {}


@pytest.mark.parametrize("value", [object(), lambda: 1, float("nan")])
def test_an_argument_without_a_canonical_form_is_an_error_at_publish(fleet: Fleet, value: Any) -> None:
    task = named(fleet, base=GuardedTask)
    with pytest.raises(KeyArgumentError, match="'note'"):
        task.delay(1, note=value)


def test_equal_calls_have_one_key_before_and_after_the_serializer(fleet: Fleet) -> None:
    task = named(fleet, base=GuardedTask, guard=Guard(key="{tenant}:{note}", unique_for="1h"))
    note = {"b": Decimal("1.50"), "a": [UUID(int=5), datetime(2026, 1, 1, tzinfo=UTC)]}
    first = task.delay(1, note=note)
    again = task.apply_async((), {"note": dict(reversed(note.items())), "tenant": 1})
    assert again.id == first.id
    fleet.work()
    assert fleet.store.counts() == {("t.work", State.SUCCEEDED): 1}
    assert task.delay(1, note=note).id == first.id


def test_a_template_over_a_missing_argument_is_an_error_where_it_is_declared(fleet: Fleet) -> None:
    task = named(fleet, base=GuardedTask, guard=Guard(scope="{tennant}"))
    with pytest.raises(KeyTemplateError, match=r"'tennant'.*tenant"):
        task.delay()


def test_early_acknowledgement_is_refused(fleet: Fleet) -> None:
    task = named(fleet, base=GuardedTask, acks_late=False)
    with pytest.raises(ConfigurationError, match="acks_late=False"):
        task.delay()


@pytest.mark.parametrize("url", ["", "redys://x", 5])
def test_a_store_setting_that_cannot_work_says_what_can(fleet: Fleet, url: Any) -> None:
    fleet.app.conf.guard_store = url
    with pytest.raises(StoreConfigurationError):
        make_store(fleet.app)


# --- what a publish leaves behind -----------------------------------------------------------------------


def test_a_publish_that_fails_leaves_no_reservation(fleet: Fleet) -> None:
    task = named(fleet, base=GuardedTask, guard=Guard(key="{tenant}", unique_for="1h"))
    with pytest.raises(Exception, match="bogus"):
        task.apply_async((1,), serializer="bogus")
    assert fleet.store.counts() == {}
    assert task.delay(1).id
    assert fleet.store.counts() == {("t.work", State.PENDING): 1}


def test_a_broker_that_fails_leaves_no_reservation(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    from kombu import Producer

    task = named(fleet, base=GuardedTask, guard=Guard(key="{tenant}", unique_for="1h"))

    def broken(self: Any, *args: Any, **kwargs: Any) -> None:
        raise OSError("the broker is down")

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "publish", broken)
        with pytest.raises(Exception, match="the broker is down"):
            task.apply_async((1,), retry=False)
    assert fleet.store.counts() == {}


def test_a_recorded_trigger_outlives_the_loss_of_its_message(fleet: Fleet) -> None:
    task = named(fleet, base=GuardedTask, guard=Guard(record=True))
    result = task.delay()
    assert len(fleet.messages()) == 1  # and lost
    fleet.clock.advance(61)
    assert fleet.sweep() == 1
    fleet.work()
    assert result.get(timeout=1).startswith("t.work#")


# --- beat -----------------------------------------------------------------------------------------------


def beat(fleet: Fleet, **entry: Any) -> Any:
    from celery.beat import Scheduler

    fleet.app.conf.beat_schedule = {"tick": {"task": "t.work", "schedule": 2.0, **entry}}
    scheduler = Scheduler(fleet.app, lazy=True)
    scheduler.update_from_dict(fleet.app.conf.beat_schedule)
    follow(scheduler)
    return scheduler


def test_two_beats_make_one_execution_a_due_time(fleet: Fleet) -> None:
    named(fleet, base=GuardedTask, guard=Guard(overlap="skip"))
    first, second = beat(fleet), beat(fleet)
    entry = first.schedule["tick"]
    before = int(datetime.now(UTC).timestamp() // 2)
    first.apply_async(entry, advance=False)
    second.apply_async(second.schedule["tick"], advance=False)
    traces = fleet.work()
    after = int(datetime.now(UTC).timestamp() // 2)
    assert len(traces) == 2
    executions = list(fleet.store.executions())
    assert 1 <= len(executions) <= 1 + after - before
    assert executions[0].source == "beat" and executions[0].key.startswith("t.work@tick:")
    assert executions[0].scheduled_at is not None and executions[0].scheduled_at % 2000 == 0


def test_a_beat_entry_of_a_task_that_beat_never_imported(fleet: Fleet) -> None:
    install(fleet.app)
    scheduler = beat(fleet, task="t.elsewhere", options={"guard": {"overlap": "queue"}})
    scheduler.apply_async(scheduler.schedule["tick"], advance=False)
    (message,) = fleet.messages()
    header = message.headers["guard"]
    assert header["options"] == {"overlap": "queue"} and header["src"] == "beat" and header["entry"] == "tick"


# --- the parent's view ----------------------------------------------------------------------------------


def running(fleet: Fleet) -> tuple[Any, Any]:
    """A message, and the store as it is while its body runs in a child."""
    task = named(fleet, base=GuardedTask, guard=Guard(max_attempts=2))
    task.delay()
    (message,) = fleet.messages()
    request = fleet.request(message)
    trigger = request._trigger()
    fleet.store.begin(trigger, owner=f"{request._guard_id}/1")
    return request, trigger


def lost_worker() -> Any:
    from billiard.einfo import ExceptionInfo
    from celery.exceptions import WorkerLostError

    try:
        raise WorkerLostError("killed")
    except WorkerLostError:
        return ExceptionInfo()


def test_a_dead_child_is_lost_at_once_and_its_stored_message_sent(fleet: Fleet) -> None:
    request, trigger = running(fleet)
    request.on_failure(lost_worker())
    assert fleet.store.get(trigger.key).state is State.LOST
    assert request.done == ["ack"] and len(fleet.messages()) == 1


def test_a_child_that_died_before_begin_goes_back_to_the_broker(fleet: Fleet) -> None:
    named(fleet, base=GuardedTask)
    fleet.app.send_task("t.work")
    request = fleet.request(fleet.messages()[0])
    request.on_failure(lost_worker())
    assert request.done == ["requeue"]


def test_a_child_that_died_between_finish_and_report_goes_back_to_the_broker(fleet: Fleet) -> None:
    from celery_guard.core.contract import Finish

    request, trigger = running(fleet)
    lease = fleet.store.begin(trigger, owner=f"{request._guard_id}/1").answer.lease
    fleet.store.finish(Finish(lease=lease, state=State.SUCCEEDED, result="1"))
    request.on_failure(lost_worker())
    assert request.done == ["requeue"]
    assert fleet.store.get(trigger.key).state is State.SUCCEEDED


def test_a_hard_time_limit_fails_and_frees(fleet: Fleet) -> None:
    request, trigger = running(fleet)
    request.on_timeout(soft=False, timeout=3)
    assert fleet.store.get(trigger.key).state is State.FAILED
    assert request.done == ["ack"]


@pytest.mark.parametrize("what", ["revoked", "expired"])
def test_revoked_and_expired_before_the_start_are_recorded(fleet: Fleet, what: str) -> None:
    named(fleet, base=GuardedTask)
    fleet.app.send_task("t.work", expires=-1 if what == "expired" else None)
    request = fleet.request(fleet.messages()[0])
    if what == "revoked":
        request._announce_revoked("revoked", False, None, False)
    else:
        assert request.revoked()
    (execution,) = fleet.store.executions()
    assert str(execution.state) == what and request.done == ["ack"]


def test_terminate_ends_the_running_one_but_a_copys_revoke_does_not(fleet: Fleet) -> None:
    request, trigger = running(fleet)
    copy = fleet.request(request.message)
    copy._announce_revoked("revoked", False, None, False)
    assert fleet.store.get(trigger.key).state is State.RUNNING
    request._announce_revoked("terminated", True, 15, False)
    assert fleet.store.get(trigger.key).state is State.REVOKED


def test_a_plain_task_keeps_its_own_acknowledgement(fleet: Fleet) -> None:
    task = named(fleet)
    guarding(task)
    assert task.acks_late is False and isinstance(task, Task)


def test_eager_mode_takes_the_same_options(fleet: Fleet) -> None:
    fleet.app.conf.task_always_eager = True
    task = named(fleet, base=GuardedTask)
    assert task.apply_async((7,), guard={"key": "{tenant}"}).get() == "t.work:7"
    with pytest.raises(OptionError, match="'overlap'"):
        task.apply_async((7,), guard={"overlpa": "x"})


def test_a_key_with_the_due_time_answers_for_a_second_beat_whatever_the_outcome(fleet: Fleet) -> None:
    task = named(fleet, base=GuardedTask)
    assert task
    for options in ({"key": "{tenant}:{scheduled:%Y-%m-%d}"}, {"key": "day{tenant}"}, {}):
        header = {"v": 1, "src": "beat", "entry": "e", "due": 1_767_225_600_000, "options": options}
        before = sum(fleet.store.counts().values())
        for _ in range(2):
            fleet.app.send_task._original("t.work", (1,), headers={"guard": header})
            fleet.work()
            fleet.clock.advance(7200)
        assert sum(fleet.store.counts().values()) == before + 1, options


def test_eager_mode_does_not_park_what_nobody_would_wake(fleet: Fleet) -> None:
    fleet.app.conf.task_always_eager = True
    inner: list[Any] = []

    def outer(self: Any, depth: int = 0) -> Any:
        if depth == 0:
            inner.append(self.apply_async((1,)).result)
        return depth

    task = fleet.app.task(
        bind=True, shared=False, name="t.outer", base=GuardedTask, guard=Guard(overlap="queue")
    )(outer)
    assert task.delay().get() == 0
    assert inner[0]["celery_guard"] == "revoked"
    assert task.delay(2).get() == 2
