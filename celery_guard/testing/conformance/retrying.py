"""Retries: the execution stays the same; between two tries the lock is released, or held where asked."""

from __future__ import annotations

from typing import Any

import pytest

from celery_guard.core.contract import GENERATION, Acquired, Answered, Dispatch, InFlight, Parked, Trigger
from celery_guard.core.options import Overlap
from celery_guard.core.rules import RESEND, RESEND_MAX
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, keys


class Retrying(Harness):
    """What happens between two tries, and to messages of tries that are over."""

    def _retry(self, scene: Scene, trigger: Trigger, held: Acquired | None = None, **facts: Any) -> Trigger:
        """Let a first try ask for another; return the next try's trigger."""
        held = held or scene.acquire(trigger)
        given = {"message": "second try", "retries": 1, "delay": MINUTE} | facts
        scene.finish(held, State.RETRYING, **given)
        return scene.copy(trigger, message=str(given["message"]))

    def test_a_retry_is_the_same_execution(self, scene: Scene) -> None:
        trigger = scene.trigger()
        first = scene.acquire(trigger)
        number = scene.record().number
        scene.store.checkpoint(first.lease, "half")
        second = scene.acquire(self._retry(scene, trigger, first), retries=1)
        assert (second.attempt, second.checkpoint) == (2, "half")
        found = scene.record()
        assert (found.number, found.retries, found.lost_attempts) == (number, 1, 0)

    def test_three_tries_one_outcome(self, scene: Scene) -> None:
        trigger = scene.trigger()
        held = scene.acquire(trigger)
        for retries in (1, 2):
            next_try = self._retry(scene, trigger, held, retries=retries)
            held = scene.acquire(next_try, retries=retries)
        scene.finish(held, result="42")
        assert (scene.record().attempt, scene.record().retries) == (3, 2)
        assert scene.store.counts()[(trigger.task, State.SUCCEEDED)] == 1
        scene.hold("next")

    def test_a_copy_of_an_earlier_try_is_in_flight(self, scene: Scene) -> None:
        trigger = scene.trigger()
        next_try = self._retry(scene, trigger)
        assert scene.begin(trigger, retries=0).answer == InFlight(state=State.RETRYING)
        held = scene.acquire(next_try, retries=1)
        assert scene.begin(trigger, retries=0).answer == InFlight(state=State.RUNNING)
        scene.finish(held)
        assert isinstance(scene.begin(trigger, retries=0).answer, Answered)

    def test_the_dispatcher_sends_a_next_try_that_does_not_come(self, scene: Scene) -> None:
        self._retry(scene, scene.trigger(), delay=MINUTE)
        scene.elapse(MINUTE + RESEND - 1)
        assert list(scene.sweep().dispatches) == []
        scene.elapse(1)
        assert list(scene.sweep().dispatches) == [
            Dispatch(key="one", trigger_id="id-one", message="second try", why="retrying")
        ]

    # -- released between two tries -----------------------------------------------------------------

    def test_by_default_the_lock_is_free_in_between(self, scene: Scene) -> None:
        self._retry(scene, scene.trigger())
        scene.hold("rival")

    @pytest.mark.parametrize("overlap", [Overlap.WAIT, Overlap.QUEUE])
    def test_a_next_try_goes_before_all_that_came_later(self, scene: Scene, overlap: Overlap) -> None:
        next_try = self._retry(scene, scene.trigger(overlap=overlap))
        rival = scene.hold("rival", overlap=overlap)
        for n in range(3):
            scene.begin(scene.trigger(f"{n}", overlap=overlap))
        assert isinstance(scene.begin(next_try, retries=1).answer, Parked)
        assert keys(scene.finish(rival).dispatches) == ["one"]
        assert scene.acquire(next_try, retries=1).attempt == 2

    def test_under_skip_a_next_try_that_finds_a_rival_is_skipped(self, scene: Scene) -> None:
        next_try = self._retry(scene, scene.trigger())
        scene.hold("rival")
        answer = scene.begin(next_try, retries=1).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.by) == (State.SKIPPED, "rival")

    def test_under_coalesce_the_newer_one_stands_for_a_next_try(self, scene: Scene) -> None:
        next_try = self._retry(scene, scene.trigger(overlap=Overlap.COALESCE))
        scene.hold("rival", overlap=Overlap.COALESCE)
        answer = scene.begin(next_try, retries=1).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.by) == (State.COALESCED, "rival")

    def test_waiters_run_in_between(self, scene: Scene) -> None:
        trigger = scene.trigger(overlap=Overlap.QUEUE)
        held = scene.acquire(trigger)
        scene.begin(scene.trigger("late", overlap=Overlap.QUEUE))
        done = scene.finish(held, State.RETRYING, message="second try", retries=1)
        assert keys(done.dispatches) == ["late"]

    # -- held between two tries ---------------------------------------------------------------------

    def test_a_held_lock_is_not_free_in_between(self, scene: Scene) -> None:
        next_try = self._retry(scene, scene.trigger(hold=True), delay=10 * MINUTE)
        scene.elapse(9 * MINUTE)
        answer = scene.begin(scene.trigger("rival")).answer
        assert isinstance(answer, Answered)
        assert answer.by == "one"
        assert scene.acquire(next_try, retries=1).attempt == 2

    @pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE, Overlap.COALESCE])
    def test_who_holds_the_lock_goes_on_though_others_wait(self, scene: Scene, overlap: Overlap) -> None:
        trigger = scene.trigger(hold=True, overlap=overlap)
        held = scene.acquire(trigger)
        waiting = Overlap.QUEUE if overlap is Overlap.SKIP else overlap
        scene.begin(scene.trigger("late", overlap=waiting))
        done = scene.finish(held, State.RETRYING, message="second try", retries=1, delay=MINUTE)
        assert list(done.dispatches) == []
        begun = scene.begin(scene.copy(trigger, message="second try"), retries=1)
        assert isinstance(begun.answer, Acquired), begun
        assert scene.state("late") is State.WAITING
        assert keys(scene.finish(begun.answer).dispatches) == ["late"]

    def test_a_held_lock_ends_when_the_next_try_never_comes(self, scene: Scene) -> None:
        self._retry(scene, scene.trigger(hold=True), delay=MINUTE)
        rivals = [scene.trigger(f"rival {n}") for n in range(2)]
        until = scene.record().expires_at
        assert until is not None
        assert until <= scene.now() + MINUTE + RESEND_MAX
        scene.clock.at(until - 1)
        assert isinstance(scene.begin(rivals[0]).answer, Answered)
        scene.clock.at(until)
        scene.acquire(rivals[1])

    def test_nobody_writes_under_a_held_lock(self, scene: Scene) -> None:
        trigger = scene.trigger(hold=True)
        held = scene.acquire(trigger)
        self._retry(scene, trigger, held)
        assert not hasattr(scene.store.verify(held.lease), "dispatches")
        assert scene.store.renew([held.lease])[0] == scene.store.verify(held.lease)

    def test_revoking_between_two_tries_frees_a_held_lock(self, scene: Scene) -> None:
        next_try = self._retry(scene, scene.trigger(hold=True))
        scene.store.revoke("one", "by an operator")
        scene.hold("rival")
        answer = scene.begin(next_try, retries=1).answer
        assert isinstance(answer, Answered)
        assert answer.state is State.REVOKED

    # -- interrupted --------------------------------------------------------------------------------

    def test_an_interrupted_one_goes_on_from_its_checkpoint(self, scene: Scene) -> None:
        trigger = scene.trigger()
        held = scene.acquire(trigger)
        scene.store.checkpoint(held.lease, "half")
        done = scene.finish(held, State.INTERRUPTED, reason="shutdown")
        assert keys(done.dispatches) == ["one"]
        again = scene.acquire(trigger)
        assert (again.checkpoint, again.attempt) == ("half", 2)
        assert scene.record().lost_attempts == 0

    def test_an_interrupted_one_goes_before_those_that_wait(self, scene: Scene) -> None:
        trigger = scene.trigger(overlap=Overlap.QUEUE)
        held = scene.acquire(trigger)
        scene.begin(scene.trigger("late", overlap=Overlap.QUEUE))
        done = scene.finish(held, State.INTERRUPTED)
        assert scene.deliver(done.dispatches) == ["one", "late"]

    # -- uncertain ----------------------------------------------------------------------------------

    def test_an_uncertain_one_is_never_sent_again(self, scene: Scene) -> None:
        trigger = scene.trigger()
        held = scene.acquire(trigger)
        assert list(scene.finish(held, State.UNCERTAIN, reason="no answer").dispatches) == []
        for _ in range(5):
            scene.elapse(60 * MINUTE)
            assert list(scene.sweep().dispatches) == []
        assert scene.begin(trigger).answer == InFlight(state=State.UNCERTAIN)
        assert scene.begin(trigger, retries=1).answer == InFlight(state=State.UNCERTAIN)
        assert scene.record().attempt == 1
        assert scene.store.purge() == 0

    def test_a_task_that_was_replaced_goes_on_after_its_success(self, scene: Scene) -> None:
        """Celery's ``Task.replace`` with something that ends in the same id: more to do, not a copy."""
        trigger = scene.trigger(unique_for=10 * MINUTE)
        scene.finish(scene.acquire(trigger))
        assert isinstance(scene.begin(trigger, retries=1).answer, Answered), "a copy of the same generation"
        number = scene.record().number
        held = scene.acquire(scene.copy(trigger, message="the rest"), retries=GENERATION)
        assert scene.record().previous == number
        assert scene.begin(trigger, retries=0).answer == InFlight(state=State.RUNNING)
        scene.finish(held, result="all of it")
        assert isinstance(scene.begin(trigger, retries=GENERATION).answer, Answered)

    def test_what_has_failed_does_not_go_on(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.finish(scene.acquire(trigger), State.FAILED)
        assert isinstance(scene.begin(trigger, retries=GENERATION).answer, Answered)
