"""``throttle``: after a success the lock stays closed for others for a while, as if it were held."""

from __future__ import annotations

from typing import Any

import pytest

from celery_guard.core.contract import Acquired, Answered, Parked
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, ids, keys

PARKING = [Overlap.WAIT, Overlap.QUEUE, Overlap.COALESCE]
HOUR = 60 * MINUTE


def throttled(scene: Scene, name: str, **options: Any) -> Any:
    """A trigger with a throttle of an hour."""
    return scene.trigger(name, **({"throttle": HOUR} | options))


def close(scene: Scene, state: State = State.SUCCEEDED, **options: Any) -> int:
    """Run one to its end; return when the lock opens again."""
    scene.finish(scene.acquire(throttled(scene, "first", **options)), state)
    return scene.now() + HOUR


class Throttling(Harness):
    """Closed from a success until the boundary; each policy decides as if the lock were held."""

    def test_skip_is_skipped_until_the_boundary_and_names_whose_success_it_was(self, scene: Scene) -> None:
        opens = close(scene)
        scene.clock.at(opens - 2)
        late = throttled(scene, "late")  # a millisecond passes
        answer = scene.begin(late).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.reason, answer.by) == (
            State.SKIPPED,
            "throttled after first",
            "first",
        )
        scene.clock.at(opens - 1)
        scene.acquire(throttled(scene, "on time"))

    def test_replace_has_nobody_to_replace(self, scene: Scene) -> None:
        close(scene, overlap=Overlap.REPLACE)
        answer = scene.begin(throttled(scene, "late", overlap=Overlap.REPLACE)).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.by) == (State.SKIPPED, "first")

    def test_replace_takes_nobodys_place_in_a_closed_lock_with_room(self, scene: Scene) -> None:
        holder = scene.acquire(throttled(scene, "holder", slots=2, lease=HOUR))
        close(scene, slots=2)
        answer = scene.begin(throttled(scene, "late", slots=2, overlap=Overlap.REPLACE)).answer
        assert isinstance(answer, Answered)
        assert answer.state is State.SKIPPED
        scene.finish(holder)

    @pytest.mark.parametrize(
        "state", [State.FAILED, State.RETRYING, State.INTERRUPTED, State.REVOKED, State.UNCERTAIN]
    )
    @pytest.mark.parametrize("failures", [False, True])
    def test_only_a_success_closes_it_and_a_failure_where_that_is_asked_for(
        self, scene: Scene, state: State, failures: bool
    ) -> None:
        options = {"throttle_failures": failures, "lock_key": f"{state} {failures}"}
        close(scene, state, **options)
        answer = scene.begin(throttled(scene, "late", **options)).answer
        assert isinstance(answer, Answered if failures and state is State.FAILED else Acquired)

    def test_a_lost_attempt_does_not_close_it(self, scene: Scene) -> None:
        scene.acquire(throttled(scene, "first", max_attempts=1), owner="mine/1")
        scene.store.lose("first", "mine", "it died")
        assert scene.state("first") is State.DEAD
        scene.acquire(throttled(scene, "late"))

    def test_one_without_a_throttle_finds_it_open(self, scene: Scene) -> None:
        close(scene)
        scene.acquire(scene.trigger("free"))

    def test_a_success_without_a_throttle_leaves_it_open(self, scene: Scene) -> None:
        scene.finish(scene.hold())
        scene.acquire(throttled(scene, "late"))

    def test_another_lock_key_is_open(self, scene: Scene) -> None:
        close(scene)
        scene.acquire(throttled(scene, "other", lock_key="other"))

    @pytest.mark.parametrize("overlap", PARKING)
    def test_it_waits_and_is_woken_when_the_lock_opens(self, scene: Scene, overlap: Overlap) -> None:
        opens = close(scene)
        late = throttled(scene, "late", overlap=overlap)
        assert scene.begin(late).answer == Parked(ahead=0)
        while scene.now() < opens - MINUTE:
            scene.elapse(MINUTE)
            assert scene.sweep().dispatches == []
        scene.clock.at(opens - 1)
        assert scene.sweep().dispatches == []
        assert isinstance(scene.begin(late).answer, Parked)  # a copy changes nothing
        scene.clock.at(opens)
        assert ids(scene.sweep().dispatches) == ["id-late"]
        scene.acquire(late)

    @pytest.mark.parametrize("overlap", [Overlap.WAIT, Overlap.QUEUE])
    def test_those_that_wait_run_one_a_period_in_order(self, scene: Scene, overlap: Overlap) -> None:
        opens = close(scene)
        triggers = [throttled(scene, f"{n}", overlap=overlap) for n in range(4)]
        for n in (2, 0, 3, 1):
            scene.begin(triggers[n])
        for n in range(4):
            scene.clock.at(opens - 1)
            assert scene.sweep().dispatches == []
            scene.clock.at(opens)
            assert scene.deliver(scene.sweep().dispatches) == [f"{n}"]
            opens = scene.now() + HOUR

    def test_those_that_waited_for_the_holder_wait_on(self, scene: Scene) -> None:
        holder = scene.acquire(throttled(scene, "holder", overlap=Overlap.QUEUE, lease=HOUR))
        scene.begin(throttled(scene, "late", overlap=Overlap.QUEUE))
        assert list(scene.finish(holder).dispatches) == []
        scene.elapse(HOUR - 1)
        assert scene.sweep().dispatches == []
        scene.elapse(1)
        assert scene.deliver(scene.sweep().dispatches) == ["late"]

    def test_those_that_coalesce_make_one_run_with_the_newest_arguments(self, scene: Scene) -> None:
        opens = close(scene)
        for n in range(5):
            scene.begin(throttled(scene, f"{n}", overlap=Overlap.COALESCE))
        scene.clock.at(opens)
        assert scene.deliver(scene.sweep().dispatches) == ["4"]

    def test_a_wait_for_ends_while_it_is_closed(self, scene: Scene) -> None:
        close(scene)
        scene.begin(throttled(scene, "late", overlap=Overlap.WAIT, wait_for=MINUTE))
        scene.elapse(MINUTE)
        assert ids(scene.sweep().dispatches) == ["id-late"]
        assert scene.state("late") is State.LOCK_TIMEOUT

    def test_a_retry_is_not_throttled(self, scene: Scene) -> None:
        trigger = throttled(scene, "tries")
        scene.finish(scene.acquire(trigger), State.RETRYING, message=trigger.message, retries=1)
        close(scene)
        scene.acquire(trigger, retries=1)

    def test_a_lost_attempt_is_not_throttled(self, scene: Scene) -> None:
        trigger = throttled(scene, "dies", overlap=Overlap.QUEUE, slots=2)
        scene.acquire(trigger, owner="mine/1")
        close(scene, slots=2)
        scene.store.lose("dies", "mine", "it died")
        scene.acquire(trigger)

    @pytest.mark.parametrize("overlap", [Overlap.WAIT, Overlap.QUEUE])
    def test_a_retry_does_not_wait_for_those_that_the_lock_is_closed_to(
        self, scene: Scene, overlap: Overlap
    ) -> None:
        trigger = throttled(scene, "tries", overlap=overlap)
        scene.finish(scene.acquire(trigger), State.RETRYING, message=trigger.message, retries=1)
        close(scene)
        scene.begin(throttled(scene, "late", overlap=overlap))
        begun = scene.begin(trigger, retries=1)
        assert isinstance(begun.answer, Acquired) or keys(begun.dispatches) == ["tries"]
        if not isinstance(begun.answer, Acquired):
            scene.acquire(trigger, retries=1)
        assert scene.state("late") is State.WAITING

    def test_the_newest_success_counts(self, scene: Scene) -> None:
        first, second = (
            scene.acquire(throttled(scene, name, slots=2, lease=HOUR)) for name in ("first", "second")
        )
        scene.finish(first)
        scene.elapse(MINUTE)
        scene.finish(second)
        scene.elapse(HOUR - 2)
        answer = scene.begin(throttled(scene, "late", slots=2)).answer
        assert isinstance(answer, Answered)
        assert answer.by == "second"

    def test_it_outlives_the_record_whose_success_it_was(self, scene: Scene) -> None:
        close(scene, keep=0)
        scene.elapse(MINUTE)
        while scene.store.purge(1000):
            pass
        answer = scene.begin(throttled(scene, "late")).answer
        assert isinstance(answer, Answered)
        assert answer.reason == "throttled after first"

    def test_it_outlives_other_holders(self, scene: Scene) -> None:
        close(scene)
        scene.finish(scene.acquire(scene.trigger("free")), State.FAILED)
        assert isinstance(scene.begin(throttled(scene, "late")).answer, Answered)

    def test_it_outlives_the_longest_throttle_and_a_purge(self, scene: Scene) -> None:
        week = 7 * 24 * HOUR
        scene.finish(scene.acquire(scene.trigger("first", throttle=week, keep=0)))
        opens = scene.now() + week
        scene.clock.at(opens - 2)
        scene.store.purge()
        assert isinstance(scene.begin(scene.trigger("late", throttle=week)).answer, Answered)
        scene.clock.at(opens)
        scene.acquire(scene.trigger("on time", throttle=week))

    def test_a_copy_of_the_one_that_closed_it_gets_its_outcome(self, scene: Scene) -> None:
        trigger = throttled(scene, "first")
        scene.finish(scene.acquire(trigger), result="done")
        answer = scene.begin(trigger).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.result) == (State.SUCCEEDED, "done")
