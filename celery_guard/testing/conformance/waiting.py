"""Waiting: ``wait`` and ``queue`` park a trigger in the store; first in, first out; no silent drop."""

from __future__ import annotations

import pytest

from celery_guard.core.contract import Answered, Dispatch, Parked
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, ids, keys

PARKING = [Overlap.WAIT, Overlap.QUEUE]


class Waiting(Harness):
    """The policies ``wait`` and ``queue``, their bounds, their order."""

    @pytest.mark.parametrize("overlap", PARKING)
    def test_a_trigger_is_parked_with_its_whole_message(self, scene: Scene, overlap: Overlap) -> None:
        holder, late = scene.hold(), scene.trigger("late", overlap=overlap)
        assert scene.begin(late).answer == Parked(ahead=0)
        assert scene.state("late") is State.WAITING
        assert list(scene.finish(holder).dispatches) == [
            Dispatch(key="late", trigger_id="id-late", message=late.message, why="released")
        ]
        assert scene.state("late") is State.PENDING
        assert scene.acquire(late).attempt == 1

    def test_a_copy_of_a_parked_trigger_changes_nothing(self, scene: Scene) -> None:
        scene.hold()
        late = scene.trigger("late", overlap=Overlap.QUEUE)
        for _ in range(3):
            assert scene.begin(late).answer == Parked(ahead=0)
        assert scene.begin(scene.trigger("next", overlap=Overlap.QUEUE)).answer == Parked(ahead=1)

    @pytest.mark.parametrize("overlap", PARKING)
    def test_first_published_first_run_however_delivered(self, scene: Scene, overlap: Overlap) -> None:
        holder = scene.hold()
        triggers = [scene.trigger(f"{n}", overlap=overlap) for n in range(10)]
        for n in (7, 2, 9, 0, 5, 1, 8, 3, 6, 4):
            scene.begin(triggers[n])
        assert scene.deliver(scene.finish(holder).dispatches) == [f"{n}" for n in range(10)]

    def test_ahead_counts_those_that_wait(self, scene: Scene) -> None:
        scene.hold()
        for n in range(5):
            assert scene.begin(scene.trigger(f"{n}", overlap=Overlap.QUEUE)).answer == Parked(ahead=n)

    def test_a_release_wakes_one_and_only_one(self, scene: Scene) -> None:
        holder = scene.hold()
        for n in range(5):
            scene.begin(scene.trigger(f"{n}", overlap=Overlap.QUEUE))
        assert keys(scene.finish(holder).dispatches) == ["0"]
        assert [scene.state(f"{n}") for n in range(3)] == [State.PENDING, State.WAITING, State.WAITING]

    def test_a_newcomer_does_not_overtake_the_one_whose_turn_it_is(self, scene: Scene) -> None:
        holder, turn = scene.hold(), scene.trigger("turn", overlap=Overlap.QUEUE)
        scene.begin(turn)
        scene.finish(holder)
        assert scene.begin(scene.trigger("newcomer", overlap=Overlap.QUEUE)).answer == Parked(ahead=1)
        skipped = scene.begin(scene.trigger("skipper")).answer
        assert isinstance(skipped, Answered)
        assert (skipped.state, skipped.by) == (State.SKIPPED, "turn")
        scene.acquire(turn)

    def test_the_one_whose_turn_it_is_waits_again_for_whoever_goes_before_it(self, scene: Scene) -> None:
        old = scene.trigger("old", overlap=Overlap.QUEUE)
        holder, turn = scene.hold(), scene.trigger("turn", overlap=Overlap.QUEUE)
        scene.begin(turn)
        scene.finish(holder)
        scene.begin(old)
        begun = scene.begin(turn)
        assert isinstance(begun.answer, Parked)
        scene.acquire(old)
        assert scene.state("turn") is State.WAITING

    @pytest.mark.parametrize("overlap", PARKING)
    def test_wait_for_ends_as_lock_timeout(self, scene: Scene, overlap: Overlap) -> None:
        scene.hold()
        late = scene.trigger("late", overlap=overlap, wait_for=5 * MINUTE)
        scene.begin(late)
        scene.elapse(5 * MINUTE - 1)
        assert scene.sweep().dispatches == []
        assert scene.state("late") is State.WAITING
        scene.elapse(1)
        assert ids(scene.sweep().dispatches) == ["id-late"]
        answer = scene.begin(late).answer
        assert isinstance(answer, Answered)
        assert answer.state is State.LOCK_TIMEOUT
        assert "wait_for" in answer.reason

    def test_what_falls_out_of_the_queue_does_not_hold_up_the_others(self, scene: Scene) -> None:
        holder = scene.hold()
        scene.begin(scene.trigger("a", overlap=Overlap.QUEUE, wait_for=MINUTE))
        scene.begin(scene.trigger("b", overlap=Overlap.QUEUE))
        scene.elapse(MINUTE)
        scene.sweep()
        assert (scene.state("a"), scene.state("b")) == (State.LOCK_TIMEOUT, State.WAITING)
        assert keys(scene.finish(holder).dispatches) == ["b"]

    def test_without_wait_for_there_is_no_end_to_waiting(self, scene: Scene) -> None:
        holder = scene.hold(lease=10 * 24 * 60 * MINUTE)
        scene.begin(scene.trigger("late", overlap=Overlap.WAIT))
        for _ in range(9):
            scene.elapse(24 * 60 * MINUTE)
            assert scene.sweep().dispatches == []
        assert keys(scene.finish(holder).dispatches) == ["late"]

    def test_each_wait_has_the_whole_of_wait_for(self, scene: Scene) -> None:
        late = scene.trigger("late", overlap=Overlap.WAIT, wait_for=MINUTE, lease=60 * MINUTE)
        holder = scene.hold()
        scene.begin(late)
        scene.finish(holder)
        running = scene.acquire(late)
        scene.elapse(10 * MINUTE)
        scene.finish(running, State.RETRYING, message=late.message, retries=1)
        scene.hold("rival")
        assert isinstance(scene.begin(late, retries=1).answer, Parked)
        scene.elapse(MINUTE - 1)
        scene.sweep()
        assert scene.state("late") is State.WAITING
        scene.elapse(1)
        scene.sweep()
        assert scene.state("late") is State.LOCK_TIMEOUT

    @pytest.mark.parametrize("overlap", PARKING)
    def test_max_queue_turns_the_next_one_away(self, scene: Scene, overlap: Overlap) -> None:
        holder = scene.hold()
        options = {"overlap": overlap, "max_queue": 2}
        for name in ("a", "b"):
            assert isinstance(scene.begin(scene.trigger(name, **options)).answer, Parked)
        answer = scene.begin(scene.trigger("c", **options)).answer
        assert isinstance(answer, Answered)
        assert answer.state is State.SKIPPED
        assert "full" in answer.reason
        scene.finish(holder)
        scene.acquire(scene.known("id-a"))
        assert isinstance(scene.begin(scene.trigger("d", **options)).answer, Parked)

    def test_a_queue_of_none_waits_for_nobody(self, scene: Scene) -> None:
        scene.hold()
        scene.begin(scene.trigger("late", overlap=Overlap.QUEUE, max_queue=0))
        assert scene.state("late") is State.SKIPPED

    def test_max_queue_never_turns_away_what_had_started(self, scene: Scene) -> None:
        trigger = scene.trigger(overlap=Overlap.QUEUE, max_queue=0)
        scene.finish(scene.acquire(trigger), State.RETRYING, message=trigger.message, retries=1)
        scene.hold("rival")
        assert isinstance(scene.begin(trigger, retries=1).answer, Parked)

    def test_revoked_and_expired_ones_leave_the_queue(self, scene: Scene) -> None:
        holder = scene.hold()
        triggers = [scene.trigger(name, overlap=Overlap.QUEUE) for name in ("a", "b", "c")]
        for trigger in triggers:
            scene.begin(trigger)
        scene.store.revoke("a", "by an operator")
        scene.store.end(triggers[1], state=State.EXPIRED, reason="too old")
        assert keys(scene.finish(holder).dispatches) == ["c"]

    @pytest.mark.parametrize("how", ["revoke", "expire"])
    def test_when_the_one_whose_turn_it_is_ends_the_next_is_woken(self, scene: Scene, how: str) -> None:
        holder = scene.hold()
        triggers = [scene.trigger(name, overlap=Overlap.QUEUE) for name in ("a", "b")]
        for trigger in triggers:
            scene.begin(trigger)
        scene.finish(holder)
        if how == "revoke":
            done = scene.store.revoke("a", "")
        else:
            done = scene.store.end(triggers[0], state=State.EXPIRED, reason="")
        assert "b" in keys(getattr(done, "dispatches", ()))
        scene.acquire(triggers[1])

    def test_a_thousand_on_one_key_do_not_starve_another(self, scene: Scene) -> None:
        scene.hold("big holder", lock_key="big")
        small = scene.hold("small holder", lock_key="small")
        many = 1000 if self.rounds >= 20 else 100
        for n in range(many):
            scene.begin(scene.trigger(f"big {n}", lock_key="big", overlap=Overlap.QUEUE))
        late = scene.trigger("small", lock_key="small", overlap=Overlap.QUEUE)
        assert scene.begin(late).answer == Parked(ahead=0)
        assert keys(scene.finish(small).dispatches) == ["small"]
        scene.acquire(late)
        scene.acquire(scene.trigger("third", lock_key="third", overlap=Overlap.QUEUE))

    def test_a_waiter_is_woken_though_the_holder_left_no_trace(self, scene: Scene) -> None:
        scene.hold(lease=MINUTE)
        scene.begin(scene.trigger("late", overlap=Overlap.WAIT))
        scene.elapse(MINUTE)
        assert "late" in keys(scene.sweep().dispatches)

    def test_waiters_outlive_the_connections_that_parked_them(self, scene: Scene) -> None:
        holder = scene.hold()
        first = scene.connect()
        first.begin(scene.trigger("late", overlap=Overlap.QUEUE), owner="gone/1")
        first.close()
        assert keys(scene.finish(holder).dispatches) == ["late"]
