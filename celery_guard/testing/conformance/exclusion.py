"""Exclusion: one holder of a lock key, and every way out of an attempt frees it."""

from __future__ import annotations

import pytest

from celery_guard.core.contract import Acquired, Answered, Finishing, Lease, Trigger
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import LOCK, Scene


class Exclusion(Harness):
    """The policies ``skip`` and ``allow``, and what frees a lock."""

    def test_skip_ends_the_trigger_and_names_the_holder(self, scene: Scene) -> None:
        scene.hold("holder")
        answer = scene.begin(scene.trigger("late")).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.by) == (State.SKIPPED, "holder")
        assert "holder" in answer.reason
        found = scene.record("late")
        assert (found.state, found.by, found.attempt, found.token) == (State.SKIPPED, "holder", 0, None)
        assert found.finished_at is not None

    def test_a_skipped_trigger_stays_skipped_when_the_lock_is_free(self, scene: Scene) -> None:
        holder, late = scene.hold(), scene.trigger("late")
        scene.begin(late)
        scene.finish(holder)
        answer = scene.begin(late).answer
        assert isinstance(answer, Answered)
        assert answer.state is State.SKIPPED

    def test_other_lock_keys_are_free(self, scene: Scene) -> None:
        scene.hold("a", lock_key="tenant:1")
        scene.hold("b", lock_key="tenant:2")

    def test_tasks_that_share_a_lock_key_exclude_each_other(self, scene: Scene) -> None:
        scene.hold("a", task="import")
        assert isinstance(scene.begin(scene.trigger("b", task="export")).answer, Answered)

    def test_allow_excludes_nobody(self, scene: Scene) -> None:
        leases = [scene.acquire(scene.trigger(f"{n}", overlap=Overlap.ALLOW)) for n in range(5)]
        assert [scene.state(f"{n}") for n in range(5)] == [State.RUNNING] * 5
        for lease in leases:
            scene.finish(lease)

    def test_allow_keeps_identity(self, scene: Scene) -> None:
        trigger = scene.trigger(overlap=Overlap.ALLOW)
        scene.acquire(trigger)
        assert not isinstance(scene.begin(trigger).answer, Acquired)

    def test_allow_neither_takes_nor_frees_the_lock_of_others(self, scene: Scene) -> None:
        holder = scene.hold("holder")
        free = scene.acquire(scene.trigger("free", overlap=Overlap.ALLOW))
        assert not scene.finish(free).dispatches
        assert isinstance(scene.begin(scene.trigger("late")).answer, Answered)
        scene.finish(holder)

    @pytest.mark.parametrize("state", sorted(Finishing))
    def test_every_ending_frees_the_lock(self, scene: Scene, state: State) -> None:
        scene.finish(scene.hold("a"), state)
        scene.hold("b")

    def test_an_operators_revoke_frees_the_lock(self, scene: Scene) -> None:
        scene.hold("a")
        scene.store.revoke("a", "stop it")
        scene.hold("b")

    def test_a_dead_process_frees_the_lock(self, scene: Scene) -> None:
        scene.acquire(scene.trigger("a"), owner=scene.owner("dead"))
        scene.store.lose("a", "dead", "its process died")
        scene.hold("b")

    def test_ending_from_outside_frees_the_lock(self, scene: Scene) -> None:
        trigger = scene.trigger("a")
        scene.acquire(trigger, owner=scene.owner("mine"))
        scene.store.end(trigger, state=State.FAILED, reason="time limit", delivery="mine")
        assert scene.state("a") is State.FAILED
        scene.hold("b")

    def test_an_ended_lease_frees_the_lock(self, scene: Scene) -> None:
        scene.acquire(scene.trigger("a", lease=1000))
        scene.elapse(1000)
        scene.hold("b")

    def test_a_recorded_trigger_does_not_hold_the_lock(self, scene: Scene) -> None:
        scene.store.reserve(scene.trigger("a"), resend_after=1000)
        scene.hold("b")

    def test_a_lease_says_what_was_asked(self, scene: Scene) -> None:
        trigger: Trigger = scene.trigger("a", lease=12_345)
        owner = scene.owner()
        held = scene.acquire(trigger, owner=owner)
        assert held.lease == Lease(key="a", lock_key=LOCK, owner=owner, token=held.lease.token, lease=12_345)
        assert held.expires_at == scene.now() + 12_345
        found = scene.record("a")
        assert (found.owner, found.token, found.attempt) == (owner, held.lease.token, 1)
        assert (found.started_at, found.expires_at) == (scene.now(), held.expires_at)
