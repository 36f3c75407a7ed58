"""``replace``: the newcomer takes the lease with a newer token; the old one's later writes are refused."""

from __future__ import annotations

from celery_guard.core.contract import Answered, Refused
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, ids


class Replacing(Harness):
    """Who replaces whom, what the old one is told, and that it never comes back."""

    def test_the_newcomer_takes_the_lease_with_a_newer_token(self, scene: Scene) -> None:
        old = scene.acquire(scene.trigger("old", overlap=Overlap.REPLACE))
        begun = scene.begin(scene.trigger("new", overlap=Overlap.REPLACE))
        found = scene.record("new")
        assert found.state is State.RUNNING
        assert found.token is not None
        assert found.token > old.lease.token
        assert (scene.state("old"), scene.record("old").by) == (State.REPLACED, "new")
        assert ids(begun.dispatches) == ["id-old"]

    def test_the_old_one_is_told_at_its_next_heartbeat(self, scene: Scene) -> None:
        old = scene.acquire(scene.trigger("old", overlap=Overlap.REPLACE))
        scene.acquire(scene.trigger("new", overlap=Overlap.REPLACE))
        refused = Refused(reason="superseded", state=State.REPLACED)
        assert list(scene.store.renew([old.lease])) == [refused]
        assert scene.store.checkpoint(old.lease, "late") == refused
        assert scene.end(old, result="late") == refused

    def test_a_replaced_one_never_runs_again(self, scene: Scene) -> None:
        trigger = scene.trigger("old", overlap=Overlap.REPLACE)
        scene.acquire(trigger)
        new = scene.acquire(scene.trigger("new", overlap=Overlap.REPLACE))
        scene.finish(new)
        answer = scene.begin(trigger).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.by) == (State.REPLACED, "new")

    def test_each_newer_one_replaces_the_one_before(self, scene: Scene) -> None:
        for n in range(5):
            scene.acquire(scene.trigger(f"{n}", overlap=Overlap.REPLACE))
        assert [scene.state(f"{n}") for n in range(5)] == [State.REPLACED] * 4 + [State.RUNNING]

    def test_a_late_older_trigger_does_not_replace_a_newer_one(self, scene: Scene) -> None:
        old = scene.trigger("old", overlap=Overlap.REPLACE)
        new = scene.acquire(scene.trigger("new", overlap=Overlap.REPLACE))
        answer = scene.begin(old).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.by) == (State.SKIPPED, "new")
        scene.finish(new)

    def test_a_lost_one_does_not_replace_its_successor(self, scene: Scene) -> None:
        trigger = scene.trigger("old", overlap=Overlap.REPLACE, lease=MINUTE)
        scene.acquire(trigger)
        scene.elapse(MINUTE)
        new = scene.acquire(scene.trigger("new", overlap=Overlap.REPLACE))
        scene.deliver(scene.sweep().dispatches)
        assert scene.state("old") is State.SKIPPED
        scene.finish(new)

    def test_it_replaces_holders_of_any_policy(self, scene: Scene) -> None:
        scene.hold("old", overlap=Overlap.QUEUE)
        scene.acquire(scene.trigger("new", overlap=Overlap.REPLACE))
        assert scene.state("old") is State.REPLACED

    def test_a_copy_of_the_running_one_replaces_nothing(self, scene: Scene) -> None:
        trigger = scene.trigger(overlap=Overlap.REPLACE)
        held = scene.acquire(trigger)
        scene.begin(trigger)
        scene.begin(scene.another(trigger))
        scene.finish(held)

    def test_a_lock_kept_between_two_tries_is_taken_too(self, scene: Scene) -> None:
        trigger = scene.trigger("old", overlap=Overlap.REPLACE, hold=True)
        scene.finish(scene.acquire(trigger), State.RETRYING, message=trigger.message, retries=1, delay=1000)
        scene.acquire(scene.trigger("new", overlap=Overlap.REPLACE))
        answer = scene.begin(trigger, retries=1).answer
        assert isinstance(answer, Answered)
        assert answer.by == "new"

    def test_it_joins_an_execution_of_its_own_key(self, scene: Scene) -> None:
        trigger = scene.trigger(overlap=Overlap.REPLACE)
        held = scene.acquire(trigger)
        scene.begin(scene.another(trigger))
        assert scene.state() is State.RUNNING
        scene.finish(held)
