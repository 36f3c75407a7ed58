"""``start_by`` and ``max_waiting_age``: what comes too late never starts, says so, and is answered in time."""

from __future__ import annotations

from typing import Any

import pytest

from celery_guard.core.contract import Acquired, Answered, Dispatch, Parked
from celery_guard.core.options import Overlap
from celery_guard.core.rules import LOOK_AGAIN
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, ids, keys

PARKING = [Overlap.WAIT, Overlap.QUEUE, Overlap.COALESCE]
DAY = 24 * 60 * MINUTE


class Limits(Harness):
    """A first attempt has a latest start; what is parked has an age. Neither says anything about later attempts."""

    # -- start_by -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("overlap", list(Overlap))
    def test_a_first_attempt_starts_before_start_by_or_never(self, scene: Scene, overlap: Overlap) -> None:
        start = scene.now() + MINUTE
        sooner = scene.trigger("sooner", overlap=overlap, start_by=start)
        later = scene.trigger("later", overlap=overlap, start_by=start)
        scene.clock.at(start - 1)
        scene.finish(scene.acquire(sooner))
        scene.clock.at(start)
        answer = scene.begin(later).answer
        assert isinstance(answer, Answered)
        assert answer.state is State.EXPIRED
        assert "start_within" in answer.reason
        found = scene.record("later")
        assert (found.state, found.attempt, found.finished_at) == (State.EXPIRED, 0, start)

    def test_an_expired_one_stays_expired_and_holds_nobody_up(self, scene: Scene) -> None:
        late = scene.trigger(start_by=scene.now())
        scene.begin(late)
        answer = scene.begin(late).answer
        assert isinstance(answer, Answered)
        assert answer.state is State.EXPIRED
        scene.hold("next")

    def test_a_recorded_one_that_nobody_delivered_in_time_expires(self, scene: Scene) -> None:
        late = scene.trigger(start_by=scene.now() + MINUTE)
        scene.store.reserve(late, resend_after=MINUTE)
        scene.elapse(MINUTE)
        assert scene.deliver(scene.sweep().dispatches) == []
        assert scene.state() is State.EXPIRED

    def test_a_lost_attempt_is_made_up_for_after_start_by(self, scene: Scene) -> None:
        trigger = scene.trigger(start_by=scene.now() + MINUTE)
        scene.acquire(trigger, owner="mine/1")
        scene.elapse(2 * MINUTE)
        scene.store.lose("one", "mine", "it died")
        assert scene.acquire(trigger).attempt == 2

    def test_a_silent_one_is_made_up_for_after_start_by(self, scene: Scene) -> None:
        trigger = scene.trigger(start_by=scene.now() + MINUTE, lease=2 * MINUTE)
        scene.acquire(trigger)
        scene.elapse(2 * MINUTE)
        assert scene.acquire(trigger).attempt == 2

    def test_a_retry_comes_after_start_by(self, scene: Scene) -> None:
        trigger = scene.trigger(start_by=scene.now() + MINUTE)
        scene.finish(scene.acquire(trigger), State.RETRYING, message=trigger.message, retries=1)
        scene.elapse(2 * MINUTE)
        assert scene.acquire(trigger, retries=1).attempt == 2

    @pytest.mark.parametrize("overlap", PARKING)
    @pytest.mark.parametrize("limit", ["start_by", "max_waiting_age"])
    def test_a_parked_one_expires_on_time_and_its_caller_is_answered(
        self, scene: Scene, overlap: Overlap, limit: str
    ) -> None:
        scene.hold(lease=DAY)
        late = scene.trigger("late", overlap=overlap)
        end = late.order + MINUTE // 2
        late = scene.copy(late, **({"start_by": end} if limit == "start_by" else {limit: MINUTE // 2}))
        assert isinstance(scene.begin(late).answer, Parked)
        scene.clock.at(end - 1)
        assert scene.sweep().dispatches == []
        assert scene.state("late") is State.WAITING
        scene.clock.at(end)
        assert list(scene.sweep().dispatches) == [
            Dispatch(key="late", trigger_id="id-late", message=late.message, why="expired")
        ]
        found = scene.record("late")
        assert (found.state, found.finished_at) == (State.EXPIRED, end)
        assert limit.replace("start_by", "start_within") in found.reason
        answer = scene.begin(late).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.reason) == (State.EXPIRED, found.reason)

    def test_what_expires_at_the_head_does_not_hold_up_the_others(self, scene: Scene) -> None:
        holder = scene.hold(lease=DAY)
        scene.begin(scene.trigger("a", overlap=Overlap.QUEUE, start_by=scene.now() + MINUTE))
        scene.begin(scene.trigger("b", overlap=Overlap.QUEUE))
        scene.elapse(MINUTE)
        scene.sweep()
        assert keys(scene.finish(holder).dispatches) == ["b"]

    def test_when_the_one_whose_turn_it_is_comes_too_late_the_next_is_woken(self, scene: Scene) -> None:
        holder = scene.hold()
        turn = scene.trigger("turn", overlap=Overlap.QUEUE, start_by=scene.now() + MINUTE)
        scene.begin(turn)
        scene.begin(scene.trigger("next", overlap=Overlap.QUEUE))
        assert keys(scene.finish(holder).dispatches) == ["turn"]
        scene.elapse(MINUTE)
        begun = scene.begin(turn)
        assert isinstance(begun.answer, Answered)
        assert begun.answer.state is State.EXPIRED
        assert keys(begun.dispatches) == ["next"]

    def test_a_retry_that_is_parked_after_start_by_is_not_due_for_ever(self, scene: Scene) -> None:
        trigger = scene.trigger(overlap=Overlap.QUEUE, start_by=scene.now() + MINUTE)
        scene.finish(scene.acquire(trigger), State.RETRYING, message=trigger.message, retries=1)
        rival = scene.hold("rival", lease=DAY)
        scene.elapse(MINUTE)
        assert isinstance(scene.begin(trigger, retries=1).answer, Parked)
        scene.store.reserve(scene.trigger("other", lock_key="other"), resend_after=1)
        scene.elapse(1)
        assert ids(scene.sweep(limit=1).dispatches) == ["id-other"]
        scene.elapse(10 * MINUTE)
        scene.sweep()
        assert scene.state() is State.WAITING
        assert keys(scene.finish(rival).dispatches) == ["one"]

    # -- max_waiting_age ----------------------------------------------------------------------------

    @pytest.mark.parametrize("overlap", PARKING)
    def test_what_does_not_wait_has_no_age(self, scene: Scene, overlap: Overlap) -> None:
        trigger = scene.trigger(overlap=overlap, max_waiting_age=MINUTE)
        scene.elapse(10 * MINUTE)
        scene.acquire(trigger)

    def test_age_is_counted_from_the_order_and_not_from_the_parking(self, scene: Scene) -> None:
        scene.hold(lease=DAY)
        late = scene.trigger("late", overlap=Overlap.QUEUE, max_waiting_age=MINUTE)
        scene.elapse(MINUTE - 10)
        scene.begin(late)
        scene.elapse(9)
        assert scene.sweep().dispatches == []
        scene.elapse(1)
        assert ids(scene.sweep().dispatches) == ["id-late"]
        assert scene.state("late") is State.EXPIRED

    def test_one_that_is_too_old_when_it_is_parked_expires_with_the_next_sweep(self, scene: Scene) -> None:
        scene.hold(lease=DAY)
        late = scene.trigger("late", overlap=Overlap.QUEUE, max_waiting_age=MINUTE)
        scene.elapse(2 * MINUTE)
        scene.begin(late)
        assert ids(scene.sweep().dispatches) == ["id-late"]
        assert scene.state("late") is State.EXPIRED

    def test_one_that_was_woken_in_time_runs(self, scene: Scene) -> None:
        holder = scene.hold(lease=DAY)
        late = scene.trigger("late", overlap=Overlap.QUEUE, max_waiting_age=MINUTE)
        scene.begin(late)
        scene.elapse(MINUTE // 2)
        scene.finish(holder)
        scene.elapse(MINUTE)  # its message took long
        scene.acquire(late)

    @pytest.mark.parametrize("limit", ["start_by", "max_waiting_age"])
    def test_what_had_started_waits_as_long_as_it_takes(self, scene: Scene, limit: str) -> None:
        options: dict[str, Any] = {limit: MINUTE if limit == "max_waiting_age" else scene.now() + MINUTE}
        trigger = scene.trigger(overlap=Overlap.QUEUE, **options)
        scene.finish(scene.acquire(trigger), State.RETRYING, message=trigger.message, retries=1)
        rival = scene.hold("rival", lease=DAY)
        scene.begin(trigger, retries=1)
        for _ in range(5):
            scene.elapse(LOOK_AGAIN)
            assert scene.sweep().dispatches == []
        assert keys(scene.finish(rival).dispatches) == ["one"]
        assert isinstance(scene.begin(trigger, retries=1).answer, Acquired)

    def test_the_sooner_of_two_limits_counts(self, scene: Scene) -> None:
        scene.hold(lease=DAY)
        for name, start, age in (("a", 1, 2), ("b", 2, 1)):
            scene.begin(
                scene.trigger(
                    name,
                    overlap=Overlap.QUEUE,
                    start_by=scene.now() + start * MINUTE,
                    max_waiting_age=age * MINUTE,
                )
            )
        scene.elapse(MINUTE)
        scene.sweep()
        assert [scene.state(name) for name in "ab"] == [State.EXPIRED] * 2
