"""Publishing: a recorded trigger stands for its key; a publish that failed leaves nothing."""

from __future__ import annotations

import pytest

from celery_guard.core.contract import Joined, Mismatch, Reserved, Standing
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, OTHER_PAYLOAD, TASK, Scene, ids


class Reserving(Harness):
    """``reserve`` and ``withdraw``."""

    def test_a_trigger_is_recorded_before_it_is_published(self, scene: Scene) -> None:
        trigger = scene.trigger(source="call", scheduled_at=123)
        assert scene.store.reserve(trigger, resend_after=MINUTE) == Reserved()
        found = scene.record()
        assert (found.state, found.trigger_id, found.attempt) == (State.PENDING, "id-one", 0)
        assert (found.task, found.source, found.scheduled_at) == (TASK, "call", 123)
        assert found.created_at == scene.now()

    def test_a_second_trigger_of_the_key_is_told_who_stands_for_it(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=MINUTE)
        standing = scene.store.reserve(scene.another(trigger), resend_after=MINUTE)
        assert standing == Standing(trigger_id="id-one", state=State.PENDING)
        assert scene.record().triggers == 1

    @pytest.mark.parametrize("state", [State.RUNNING, State.RETRYING, State.SUCCEEDED])
    def test_so_it_is_whatever_became_of_it_meanwhile(self, scene: Scene, state: State) -> None:
        trigger = scene.trigger(unique_for=MINUTE)
        held = scene.acquire(trigger)
        if state is not State.RUNNING:
            scene.finish(held, state)
        standing = scene.store.reserve(scene.another(trigger), resend_after=MINUTE)
        assert standing == Standing(trigger_id="id-one", state=state)

    def test_recording_the_same_trigger_twice_is_once(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=MINUTE)
        before = scene.record()
        assert scene.store.reserve(trigger, resend_after=0) == Standing(
            trigger_id="id-one", state=State.PENDING
        )
        assert scene.record() == before

    def test_another_payload_is_a_mismatch(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=MINUTE)
        other = scene.another(trigger, fingerprint=OTHER_PAYLOAD)
        assert scene.store.reserve(other, resend_after=MINUTE) == Mismatch(trigger_id="id-one")

    def test_when_the_window_is_over_a_new_one_is_recorded(self, scene: Scene) -> None:
        trigger = scene.trigger(unique_for=MINUTE)
        scene.finish(scene.acquire(trigger))
        before = scene.record()
        scene.elapse(MINUTE)
        assert scene.store.reserve(scene.another(trigger), resend_after=MINUTE) == Reserved()
        found = scene.record()
        assert (found.state, found.previous) == (State.PENDING, before.number)

    def test_the_message_of_a_recorded_trigger_begins_it(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=MINUTE)
        number = scene.record().number
        held = scene.acquire(trigger)
        assert (held.attempt, scene.record().number) == (1, number)

    def test_a_failed_publish_leaves_nothing(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=0)
        assert scene.store.withdraw("one", "id-one") is True
        assert scene.store.get("one") is None
        assert list(scene.sweep().dispatches) == []
        assert dict(scene.store.counts()) == {}
        assert scene.store.reserve(scene.another(trigger), resend_after=0) == Reserved()

    def test_what_is_not_there_cannot_be_withdrawn(self, scene: Scene) -> None:
        assert scene.store.withdraw("one", "id-one") is False

    def test_only_its_own_trigger_withdraws_it(self, scene: Scene) -> None:
        scene.store.reserve(scene.trigger(), resend_after=MINUTE)
        assert scene.store.withdraw("one", "id-other") is False
        assert scene.state() is State.PENDING

    @pytest.mark.parametrize(
        "state", [State.RUNNING, State.SUCCEEDED, State.RETRYING, State.LOST, State.FAILED, State.UNCERTAIN]
    )
    def test_what_has_begun_cannot_be_withdrawn(self, scene: Scene, state: State) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=MINUTE)
        held = scene.acquire(trigger, owner="mine/1")
        if state is State.LOST:
            scene.store.lose("one", "mine", "")
        elif state is not State.RUNNING:
            scene.finish(held, state)
        assert scene.store.withdraw("one", "id-one") is False
        assert scene.state() is state

    def test_what_was_parked_cannot_be_withdrawn(self, scene: Scene) -> None:
        holder, late = scene.hold(), scene.trigger("late", overlap=Overlap.QUEUE)
        scene.store.reserve(late, resend_after=MINUTE)
        scene.begin(late)
        assert scene.store.withdraw("late", "id-late") is False
        scene.finish(holder)
        assert scene.state("late") is State.PENDING
        assert scene.store.withdraw("late", "id-late") is False
        scene.acquire(late)

    def test_who_joined_what_is_withdrawn_is_not_lost(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=MINUTE)
        other = scene.another(trigger)
        assert scene.begin(other).answer == Joined(trigger_id="id-one")
        scene.store.withdraw("one", "id-one")
        scene.elapse(MINUTE)
        assert "id-another" in ids(scene.sweep().dispatches)
        assert scene.acquire(other).attempt == 1
