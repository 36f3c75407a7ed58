"""Records: what people and programs see, what is counted, what is purged, and a store that is away."""

from __future__ import annotations

import pytest

from celery_guard.core.contract import Finish, Lease, Store
from celery_guard.core.errors import StoreUnavailableError
from celery_guard.core.options import Overlap
from celery_guard.core.rules import MAX_NOTICES, RESEND_MAX
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import LOCK, MINUTE, TASK, Scene

LEASE = Lease(key="one", lock_key=LOCK, owner="mine/1", token=1, lease=1000)

METHODS = [
    *("now", "check", "reserve", "withdraw", "begin", "renew", "finish", "checkpoint", "verify", "lose"),
    *("end", "revoke", "sweep", "get", "executions", "counts", "purge"),
]


class Records(Harness):
    """``get``, ``executions``, ``counts``, ``purge``, ``check``, ``close``."""

    def test_it_is_a_store(self, scene: Scene) -> None:
        assert isinstance(scene.store, Store)

    def test_a_set_up_that_keeps_the_promises_has_no_errors(self, live: Scene) -> None:
        assert all(isinstance(warning, str) for warning in live.store.check())

    def test_what_is_not_there_is_none(self, scene: Scene) -> None:
        assert scene.store.get("nothing") is None
        assert list(scene.store.executions()) == []
        assert dict(scene.store.counts()) == {}
        assert scene.store.purge() == 0

    def test_a_record_says_what_happened(self, scene: Scene) -> None:
        trigger = scene.trigger(source="beat", scheduled_at=77, overlap=Overlap.QUEUE)
        held = scene.acquire(trigger)
        scene.elapse(1000)
        scene.finish(held, reason="well")
        found = scene.record()
        assert (found.key, found.task, found.lock_key, found.trigger_id) == ("one", TASK, LOCK, "id-one")
        assert (found.source, found.scheduled_at, found.overlap) == ("beat", 77, Overlap.QUEUE)
        assert (found.state, found.reason, found.attempt, found.triggers) == (State.SUCCEEDED, "well", 1, 1)
        assert (found.started_at, found.finished_at) == (scene.now() - 1000, scene.now())
        assert (found.owner, found.token) == (held.lease.owner, held.lease.token)
        assert (found.fingerprint, found.expires_at, found.previous) == (trigger.fingerprint, None, None)
        assert type(found.state) is State
        assert type(found.overlap) is Overlap

    def test_executions_are_listed_newest_first_by_task_and_up_to_a_limit(self, scene: Scene) -> None:
        for n in range(6):
            scene.hold(f"{n}", lock_key=f"{n}", task=("even", "odd")[n % 2])
        assert [found.key for found in scene.store.executions(task="odd")] == ["5", "3", "1"]
        assert [found.key for found in scene.store.executions(limit=2)] == ["5", "4"]
        assert {found.key for found in scene.store.executions()} == {f"{n}" for n in range(6)}
        assert list(scene.store.executions(task="none")) == []

    def test_living_ones_are_counted_now_and_final_ones_since_ever(self, scene: Scene) -> None:
        for n in range(3):
            scene.finish(scene.acquire(scene.trigger(f"done {n}", keep=0)))
        scene.hold("running", lock_key="other")
        scene.store.reserve(scene.trigger("pending", task="other.task"), resend_after=MINUTE)
        expected = {
            (TASK, State.SUCCEEDED): 3,
            (TASK, State.RUNNING): 1,
            ("other.task", State.PENDING): 1,
        }
        assert {key: count for key, count in scene.store.counts().items() if count} == expected
        scene.elapse(1)
        assert scene.store.purge() == 3
        assert {key: count for key, count in scene.store.counts().items() if count} == expected

    def test_each_trigger_of_a_policy_is_counted_once(self, scene: Scene) -> None:
        holder = scene.hold(overlap=Overlap.COALESCE)
        for n in range(5):
            scene.begin(scene.trigger(f"{n}", overlap=Overlap.COALESCE))
        scene.deliver(scene.finish(holder).dispatches)
        counted = {state: count for (_, state), count in scene.store.counts().items() if count}
        assert counted == {State.SUCCEEDED: 2, State.COALESCED: 4}

    def test_purge_takes_what_is_final_and_was_kept_long_enough(self, scene: Scene) -> None:
        scene.finish(scene.acquire(scene.trigger("old", keep=MINUTE)))
        scene.elapse(1)
        scene.finish(scene.acquire(scene.trigger("young", keep=MINUTE)))
        scene.hold("running")
        scene.begin(scene.trigger("waiting", overlap=Overlap.QUEUE))
        finished = scene.record("old").finished_at
        assert finished is not None
        scene.clock.at(finished + MINUTE - 1)
        assert scene.store.purge() == 0
        scene.elapse(1)
        assert scene.store.purge() == 1
        assert scene.store.get("old") is None
        scene.elapse(1000 * MINUTE)
        assert scene.store.purge() == 1
        assert (scene.state("running"), scene.state("waiting")) == (State.RUNNING, State.WAITING)

    def test_purge_takes_no_more_than_asked(self, scene: Scene) -> None:
        for n in range(7):
            scene.finish(scene.acquire(scene.trigger(f"{n}", keep=0)))
        scene.elapse(1)
        assert [scene.store.purge(limit=3) for _ in range(4)] == [3, 3, 1, 0]

    def test_a_purged_one_owes_nothing(self, scene: Scene) -> None:
        trigger = scene.trigger(keep=MINUTE)
        held = scene.acquire(trigger)
        scene.begin(scene.another(trigger))
        scene.finish(held)
        scene.elapse(MAX_NOTICES * RESEND_MAX)
        scene.store.purge()
        swept = scene.sweep()
        assert (list(swept.dispatches), list(swept.lost)) == ([], [])

    def test_a_closed_store_may_be_used_again(self, scene: Scene) -> None:
        store = scene.connect()
        store.begin(scene.trigger(), owner="mine/1")
        store.close()
        store.close()
        found = store.get("one")
        assert found is not None
        assert found.state is State.RUNNING

    @pytest.mark.parametrize("method", METHODS)
    def test_every_error_of_the_driver_is_store_unavailable(self, scene: Scene, method: str) -> None:
        store = self.unreachable()
        trigger = scene.trigger()
        calls = {
            "now": store.now,
            "check": store.check,
            "reserve": lambda: store.reserve(trigger, resend_after=1),
            "withdraw": lambda: store.withdraw("one", "id-one"),
            "begin": lambda: store.begin(trigger, owner="mine/1"),
            "renew": lambda: store.renew([LEASE]),
            "finish": lambda: store.finish(Finish(lease=LEASE, state=State.SUCCEEDED)),
            "checkpoint": lambda: store.checkpoint(LEASE, "half"),
            "verify": lambda: store.verify(LEASE),
            "lose": lambda: store.lose("one", "mine", ""),
            "end": lambda: store.end(trigger, state=State.EXPIRED, reason=""),
            "revoke": lambda: store.revoke("one", ""),
            "sweep": lambda: store.sweep("dispatcher", ttl=1000),
            "get": lambda: store.get("one"),
            "executions": lambda: list(store.executions()),
            "counts": store.counts,
            "purge": store.purge,
        }
        with pytest.raises(StoreUnavailableError) as caught:
            calls[method]()
        assert caught.value.__cause__ is not None
        assert caught.value.facts["operation"]
        store.close()
