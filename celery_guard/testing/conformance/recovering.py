"""Recovery: a dead process's work goes on elsewhere with a higher token, or ends as dead; explicit replay."""

from __future__ import annotations

from typing import Any

import pytest

from celery_guard.core.contract import Acquired, Answered, Done, Mismatch, Parked, Refused, Reserved, Trigger
from celery_guard.core.options import Overlap
from celery_guard.core.states import REOPENABLE, State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, OTHER_PAYLOAD, Scene, ids, keys


class Recovering(Harness):
    """Lost attempts, ``max_attempts``, the place a lost one keeps, and what a replay opens again."""

    def _lose(self, scene: Scene, trigger: Trigger, reason: str = "its process died") -> Done:
        """Let an attempt begin and its process die."""
        owner = scene.owner()
        scene.acquire(trigger, owner=owner)
        done = scene.store.lose(trigger.key, owner.split("/")[0], reason)
        assert isinstance(done, Done)
        return done

    def test_a_dead_process_is_lost_at_once(self, scene: Scene) -> None:
        done = self._lose(scene, scene.trigger(lease=60 * MINUTE))
        assert done.state is State.LOST
        assert ids(done.dispatches) == ["id-one"]
        found = scene.record()
        assert (found.state, found.reason, found.lost_attempts) == (State.LOST, "its process died", 1)

    def test_the_next_attempt_goes_on_from_the_last_checkpoint(self, scene: Scene) -> None:
        trigger = scene.trigger()
        first = scene.acquire(trigger, owner="mine/1")
        for text in ("a third", "half"):
            scene.store.checkpoint(first.lease, text)
        scene.store.lose("one", "mine", "")
        second = scene.acquire(trigger)
        assert (second.checkpoint, second.attempt) == ("half", 2)
        assert second.lease.token > first.lease.token
        assert scene.store.checkpoint(first.lease, "late").state is State.RUNNING
        assert scene.record().checkpoint == "half"

    def test_after_max_attempts_it_is_dead_and_the_lock_is_free(self, scene: Scene) -> None:
        trigger = scene.trigger(max_attempts=3)
        assert [self._lose(scene, trigger).state for _ in range(3)] == [State.LOST, State.LOST, State.DEAD]
        found = scene.record()
        assert (found.attempt, found.lost_attempts) == (3, 3)
        assert "3 attempts lost" in found.reason
        answer = scene.begin(trigger).answer
        assert isinstance(answer, Answered)
        assert answer.state is State.DEAD
        scene.hold("rival")

    def test_silent_owners_count_as_well(self, scene: Scene) -> None:
        trigger = scene.trigger(max_attempts=2, lease=MINUTE)
        scene.acquire(trigger)
        scene.elapse(MINUTE)
        scene.acquire(trigger)
        scene.elapse(MINUTE)
        begun = scene.begin(trigger)
        assert isinstance(begun.answer, Answered)
        assert begun.answer.state is State.DEAD

    def test_a_dead_one_wakes_who_waits(self, scene: Scene) -> None:
        trigger = scene.trigger(max_attempts=1, overlap=Overlap.QUEUE)
        scene.acquire(trigger, owner="mine/1")
        scene.begin(scene.trigger("late", overlap=Overlap.QUEUE))
        done = scene.store.lose("one", "mine", "")
        assert isinstance(done, Done)
        assert sorted(keys(done.dispatches)) == ["late", "one"]

    def test_retries_and_lost_attempts_are_counted_apart(self, scene: Scene) -> None:
        trigger = scene.trigger(max_attempts=2)
        for retries in range(1, 6):
            held = scene.acquire(trigger, retries=retries - 1)
            scene.finish(held, State.RETRYING, message=trigger.message, retries=retries)
        owner = scene.owner()
        scene.acquire(trigger, owner=owner, retries=5)
        done = scene.store.lose("one", owner.split("/")[0], "")
        assert isinstance(done, Done)
        assert done.state is State.LOST
        assert (scene.record().retries, scene.record().lost_attempts) == (5, 1)

    @pytest.mark.parametrize("overlap", [Overlap.WAIT, Overlap.QUEUE])
    def test_a_lost_one_keeps_its_place_before_those_that_wait(self, scene: Scene, overlap: Overlap) -> None:
        trigger = scene.trigger("first", overlap=overlap)
        scene.acquire(trigger, owner="mine/1")
        for n in range(3):
            scene.begin(scene.trigger(f"{n}", overlap=overlap))
        done = scene.store.lose("first", "mine", "")
        assert isinstance(done, Done)
        assert keys(done.dispatches) == ["first"]
        assert isinstance(scene.begin(scene.trigger("newcomer", overlap=overlap)).answer, Parked)
        assert scene.deliver(done.dispatches) == ["first", "0", "1", "2", "newcomer"]

    @pytest.mark.parametrize("overlap", [Overlap.WAIT, Overlap.QUEUE])
    def test_a_lost_one_that_finds_a_newcomer_goes_next(self, scene: Scene, overlap: Overlap) -> None:
        trigger = scene.trigger("first", overlap=overlap, lease=MINUTE, max_queue=1)
        scene.acquire(trigger)
        scene.elapse(MINUTE)
        newcomer = scene.hold("newcomer", overlap=overlap)
        scene.begin(scene.trigger("later", overlap=overlap))
        scene.deliver(scene.sweep().dispatches)
        assert scene.state("first") is State.WAITING
        assert scene.deliver(scene.finish(newcomer).dispatches) == ["first", "later"]

    def test_under_skip_a_lost_one_that_finds_a_newcomer_is_skipped(self, scene: Scene) -> None:
        scene.acquire(scene.trigger("first", lease=MINUTE))
        scene.elapse(MINUTE)
        scene.hold("newcomer")
        assert scene.deliver(scene.sweep().dispatches) == []
        found = scene.record("first")
        assert (found.state, found.by) == (State.SKIPPED, "newcomer")
        assert "newcomer" in found.reason

    def test_under_coalesce_a_newcomer_stands_for_a_lost_one(self, scene: Scene) -> None:
        scene.acquire(scene.trigger("first", lease=MINUTE, overlap=Overlap.COALESCE))
        scene.elapse(MINUTE)
        scene.hold("newcomer", overlap=Overlap.COALESCE)
        assert scene.deliver(scene.sweep().dispatches) == []
        found = scene.record("first")
        assert (found.state, found.by) == (State.COALESCED, "newcomer")

    def test_losing_what_does_not_run_is_refused(self, scene: Scene) -> None:
        assert scene.store.lose("one", "mine", "") == Refused(reason="missing")
        trigger = scene.trigger()
        held = scene.acquire(trigger, owner="mine/1")
        scene.finish(held)
        assert scene.store.lose("one", "mine", "") == Refused(reason="superseded", state=State.SUCCEEDED)

    # -- explicit replay ----------------------------------------------------------------------------

    def _ended(self, scene: Scene, state: State) -> Trigger:
        trigger = scene.trigger(
            overlap=Overlap.WAIT if state is State.LOCK_TIMEOUT else Overlap.SKIP,
            wait_for=MINUTE if state is State.LOCK_TIMEOUT else None,
            max_attempts=1,
        )
        if state in (State.SUCCEEDED, State.FAILED):
            held = scene.acquire(trigger)
            scene.store.checkpoint(held.lease, "half")
            scene.finish(held, state)
        elif state is State.DEAD:
            self._lose(scene, trigger)
        elif state is State.LOCK_TIMEOUT:
            holder = scene.hold()
            scene.begin(trigger)
            scene.elapse(MINUTE)
            scene.sweep()
            scene.finish(holder)
        elif state is State.SKIPPED:
            holder = scene.hold()
            scene.begin(trigger)
            scene.finish(holder)
        else:
            scene.store.end(trigger, state=state, reason="")
        assert scene.state() is state
        return trigger

    @pytest.mark.parametrize("how", ["reserve", "begin"])
    @pytest.mark.parametrize(
        "state", [*sorted(REOPENABLE), State.SUCCEEDED, State.SKIPPED, State.REVOKED, State.EXPIRED]
    )
    def test_a_replay_opens_failed_dead_and_lock_timeout(self, scene: Scene, state: State, how: str) -> None:
        trigger = self._ended(scene, state)
        before = scene.record()
        replay = scene.another(trigger, "replay", reopen=True)
        if how == "reserve":
            assert scene.store.reserve(replay, resend_after=MINUTE) == Reserved()
            assert scene.state() is State.PENDING
        held = scene.acquire(replay)
        found = scene.record()
        assert found.trigger_id == "id-replay"
        if state in REOPENABLE:
            assert found.number == before.number
            assert held.attempt == before.attempt + 1
            assert held.checkpoint == before.checkpoint
            assert (found.lost_attempts, found.retries) == (0, 0)
        else:
            assert (found.number > before.number, found.previous) == (True, before.number)
            assert held.attempt == 1
        scene.finish(held)

    def test_a_replay_within_the_window_of_a_success_is_answered(self, scene: Scene) -> None:
        trigger = scene.trigger(unique_for=60 * MINUTE)
        scene.finish(scene.acquire(trigger))
        answer = scene.begin(scene.another(trigger, reopen=True)).answer
        assert isinstance(answer, Answered)

    def test_a_replay_joins_a_living_execution(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.acquire(trigger)
        assert not isinstance(scene.begin(scene.another(trigger, reopen=True)).answer, Acquired)

    def test_a_replay_with_another_payload_is_a_mismatch(self, scene: Scene) -> None:
        trigger = self._ended(scene, State.FAILED)
        replay = scene.another(trigger, "replay", reopen=True, fingerprint=OTHER_PAYLOAD)
        assert scene.store.reserve(replay, resend_after=0) == Mismatch(trigger_id="id-one")
        assert scene.begin(replay).answer == Mismatch(trigger_id="id-one")
        assert scene.state() is State.FAILED

    def test_a_replayed_dead_one_has_all_its_attempts_again(self, scene: Scene) -> None:
        trigger = scene.trigger(max_attempts=2)
        states = [self._lose(scene, trigger).state for _ in range(2)]
        replay = scene.copy(trigger, reopen=True)
        states += [self._lose(scene, replay).state, self._lose(scene, trigger).state]
        assert states == [State.LOST, State.DEAD] * 2

    def test_a_replay_of_what_waited_too_long_may_wait_as_long_again(self, scene: Scene) -> None:
        options: dict[str, Any] = {"overlap": Overlap.WAIT, "wait_for": MINUTE}
        late = scene.trigger("late", **options)
        scene.hold()
        scene.begin(late)
        scene.elapse(MINUTE)
        scene.sweep()
        assert scene.state("late") is State.LOCK_TIMEOUT
        scene.begin(scene.another(late, "replay", reopen=True))
        scene.elapse(MINUTE - 1)
        scene.sweep()
        assert scene.state("late") is State.WAITING
        scene.elapse(1)
        scene.sweep()
        assert scene.state("late") is State.LOCK_TIMEOUT
