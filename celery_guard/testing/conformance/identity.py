"""Identity: many triggers can mean one execution, and it has one outcome."""

from __future__ import annotations

import pytest

from celery_guard.core.contract import Acquired, Answered, InFlight, Joined, Mismatch, Refused
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, OTHER_PAYLOAD, Scene

ALIKE = [
    ("key", "Key"),
    ("key", "key "),
    ("key", "key%20"),
    ("a:b", "a%3Ab"),
    ("key{1}", "key{2}"),
    ("x" * 199 + "1", "x" * 199 + "2"),
    ("it's", "its"),
    ("a_c", "abc"),
    ("a*", "ab"),
    ("1", "01"),
]


class Identity(Harness):
    """Copies, other triggers of the same execution, the window of an outcome, other payloads."""

    def test_a_copy_of_a_running_execution_is_neither_run_nor_done(self, scene: Scene) -> None:
        trigger = scene.trigger()
        first = scene.acquire(trigger)
        assert scene.begin(trigger).answer == InFlight(state=State.RUNNING)
        assert scene.record().attempt == 1
        scene.finish(first)

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
    def test_a_copy_of_a_finished_execution_gets_its_outcome(self, scene: Scene, state: State) -> None:
        trigger = scene.trigger()
        scene.finish(scene.acquire(trigger), state, reason="why", result='{"answer": 42}')
        for _ in range(2):
            answer = scene.begin(trigger).answer
            assert answer == Answered(
                state=state, reason="why", result='{"answer": 42}', trigger_id=trigger.trigger_id
            )
        assert scene.record().attempt == 1

    def test_another_trigger_of_a_living_execution_joins_it(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.acquire(trigger)
        other = scene.another(trigger)
        for _ in range(2):
            assert scene.begin(other).answer == Joined(trigger_id=trigger.trigger_id)
        assert scene.record().triggers == 2
        assert scene.record().attempt == 1

    def test_a_succeeded_execution_answers_until_its_window_ends(self, scene: Scene) -> None:
        trigger = scene.trigger(unique_for=MINUTE)
        scene.finish(scene.acquire(trigger), result="42")
        done = scene.record()
        scene.elapse(MINUTE - 2)
        other = scene.another(trigger)
        answer = scene.begin(other).answer
        assert answer == Answered(
            state=State.SUCCEEDED, reason="", result="42", trigger_id=trigger.trigger_id
        )
        scene.elapse(1)
        scene.acquire(scene.copy(other))
        assert scene.record().previous == done.number
        assert scene.record().number > done.number

    def test_the_window_starts_when_the_execution_ends(self, scene: Scene) -> None:
        trigger = scene.trigger(unique_for=MINUTE, lease=10 * MINUTE)
        lease = scene.acquire(trigger)
        scene.elapse(5 * MINUTE)
        scene.finish(lease)
        scene.elapse(MINUTE // 2)
        assert isinstance(scene.begin(scene.another(trigger)).answer, Answered)

    def test_without_a_window_a_new_trigger_starts_the_next_execution(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.finish(scene.acquire(trigger), result="42")
        scene.acquire(scene.another(trigger))

    @pytest.mark.parametrize("state", [State.FAILED, State.REVOKED])
    def test_no_window_makes_an_unsuccessful_execution_answer(self, scene: Scene, state: State) -> None:
        trigger = scene.trigger(unique_for=MINUTE)
        scene.finish(scene.acquire(trigger), state)
        before = scene.record()
        scene.acquire(scene.another(trigger))
        assert (scene.record().number > before.number, scene.record().previous) == (True, before.number)

    def test_the_next_execution_inherits_nothing(self, scene: Scene) -> None:
        trigger = scene.trigger()
        first = scene.acquire(trigger)
        scene.store.checkpoint(first.lease, "half")
        scene.finish(first, State.FAILED, reason="why", result="42", retries=3)
        second = scene.acquire(scene.another(trigger))
        assert (second.attempt, second.checkpoint) == (1, None)
        found = scene.record()
        assert (found.reason, found.retries, found.triggers, found.lost_attempts) == ("", 0, 1, 0)
        assert found.finished_at is None

    def test_a_copy_is_known_for_as_long_as_its_record_is_kept(self, scene: Scene) -> None:
        trigger = scene.trigger(keep=MINUTE)
        scene.finish(scene.acquire(trigger))
        scene.elapse(MINUTE - 1)
        assert isinstance(scene.begin(trigger).answer, Answered)
        scene.elapse(1)
        scene.acquire(trigger)

    def test_a_window_longer_than_the_keeping_keeps_the_record(self, scene: Scene) -> None:
        trigger = scene.trigger(keep=1, unique_for=MINUTE)
        scene.finish(scene.acquire(trigger))
        scene.elapse(MINUTE - 2)
        assert scene.store.purge() == 0
        assert isinstance(scene.begin(scene.another(trigger)).answer, Answered)

    @pytest.mark.parametrize(
        "state", [State.SUCCEEDED, State.FAILED, State.SKIPPED, State.REVOKED, State.EXPIRED]
    )
    def test_a_due_time_has_one_execution_whatever_its_outcome(self, scene: Scene, state: State) -> None:
        trigger = scene.trigger("entry@due", once_per_key=True, keep=MINUTE)
        if state in (State.SUCCEEDED, State.FAILED):
            scene.finish(scene.acquire(trigger), state)
        elif state is State.SKIPPED:
            scene.hold()
            scene.begin(trigger)
        else:
            scene.store.end(trigger, state=state, reason="")
        assert scene.state("entry@due") is state
        scene.elapse(MINUTE - 2)
        second_beat = scene.another(trigger)
        answer = scene.begin(second_beat).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.trigger_id) == (state, trigger.trigger_id)

    def test_a_due_time_that_beat_left_out_answers_for_nobody_who_brings_it(self, scene: Scene) -> None:
        """Another beat has sent it, and its message is still under way; or a backfill makes up for it."""
        due = {"once_per_key": True, "scheduled_at": 1_900_000_000_000, "keep": MINUTE}
        noted = scene.trigger("entry@due", source="misfire", **due)
        assert scene.store.end(noted, state=State.EXPIRED, reason="missed").state is State.EXPIRED
        again = scene.another(noted, "second beat")
        assert isinstance(scene.store.end(again, state=State.EXPIRED, reason="missed"), Refused)
        before = scene.record("entry@due")
        lease = scene.acquire(scene.another(noted, "tick", source="beat"))
        assert scene.record("entry@due").previous == before.number
        assert isinstance(scene.store.end(again, state=State.EXPIRED, reason="missed"), Refused)
        scene.finish(lease)
        assert isinstance(scene.store.end(again, state=State.EXPIRED, reason="missed"), Refused)
        assert scene.state("entry@due") is State.SUCCEEDED

    @pytest.mark.parametrize("state", [State.FAILED, State.SKIPPED, State.EXPIRED, State.SUCCEEDED])
    def test_a_backfill_is_answered_by_success_alone(self, scene: Scene, state: State) -> None:
        due = {"once_per_key": True, "scheduled_at": 1_900_000_000_000, "keep": MINUTE}
        tick = scene.trigger("entry@due", source="beat", **due)
        if state in (State.SUCCEEDED, State.FAILED):
            scene.finish(scene.acquire(tick), state)
        elif state is State.SKIPPED:
            holder = scene.hold()
            scene.begin(tick)
            scene.finish(holder)
        else:
            scene.store.end(tick, state=state, reason="")
        backfill = scene.another(tick, "backfill", source="backfill")
        if state is State.SUCCEEDED:
            assert isinstance(scene.begin(backfill).answer, Answered)
            return
        scene.finish(scene.acquire(backfill), State.FAILED)
        assert isinstance(scene.begin(backfill).answer, Answered)  # a copy of its message

    def test_a_due_time_in_the_making_is_joined(self, scene: Scene) -> None:
        trigger = scene.trigger("entry@due", once_per_key=True, scheduled_at=1_900_000_000_000)
        scene.acquire(trigger)
        assert isinstance(scene.begin(scene.another(trigger)).answer, Joined)
        assert scene.record("entry@due").scheduled_at == 1_900_000_000_000

    def test_a_key_with_another_payload_is_a_mismatch(self, scene: Scene) -> None:
        trigger = scene.trigger(unique_for=MINUTE)
        other = scene.another(trigger, fingerprint=OTHER_PAYLOAD)
        lease = scene.acquire(trigger)
        assert scene.begin(other).answer == Mismatch(trigger_id=trigger.trigger_id)
        scene.finish(lease)
        assert scene.begin(other).answer == Mismatch(trigger_id=trigger.trigger_id)
        assert (scene.record().triggers, scene.record().attempt) == (1, 1)
        scene.elapse(MINUTE)
        scene.acquire(other)

    def test_a_retry_may_change_its_own_payload(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.finish(scene.acquire(trigger), State.RETRYING, message="second try", retries=1)
        scene.acquire(scene.copy(trigger, fingerprint=OTHER_PAYLOAD, message="second try"), retries=1)

    @pytest.mark.parametrize(("one", "two"), ALIKE)
    def test_keys_that_look_alike_are_different_executions(self, scene: Scene, one: str, two: str) -> None:
        scene.acquire(scene.trigger(one, lock_key="one", trigger_id="id-1"))
        scene.acquire(scene.trigger(two, lock_key="two", trigger_id="id-2"))
        assert (scene.record(one).key, scene.record(two).key) == (one, two)

    @pytest.mark.parametrize(("one", "two"), ALIKE)
    def test_lock_keys_that_look_alike_are_different_locks(self, scene: Scene, one: str, two: str) -> None:
        scene.acquire(scene.trigger("a", lock_key=one))
        scene.acquire(scene.trigger("b", lock_key=two))
        answer = scene.begin(scene.trigger("c", lock_key=one)).answer
        assert isinstance(answer, Answered)
        assert answer.by == "a"

    def test_one_trigger_id_in_two_keys_is_two_executions(self, scene: Scene) -> None:
        scene.acquire(scene.trigger("a", lock_key="a", trigger_id="same"))
        scene.acquire(scene.trigger("b", lock_key="b", trigger_id="same"))

    def test_empty_text_is_not_nothing(self, scene: Scene) -> None:
        trigger = scene.trigger(lease=MINUTE)
        held = scene.acquire(trigger)
        assert (held.checkpoint, scene.record().checkpoint) == (None, None)
        scene.store.checkpoint(held.lease, "")
        assert scene.record().checkpoint == ""
        scene.elapse(MINUTE)
        second = scene.acquire(trigger)
        assert second.checkpoint == ""
        scene.finish(second, result="")
        answer = scene.begin(trigger).answer
        assert isinstance(answer, Answered)
        assert answer.result == ""

    def test_text_is_kept_as_it_is(self, scene: Scene) -> None:
        text = "é ☃ 🛫 '\"\\ %s {} \n\t" + "x" * 200_000
        trigger = scene.trigger(message=text, overlap=Overlap.WAIT)
        holder = scene.hold()
        scene.begin(trigger)
        (dispatch,) = scene.finish(holder).dispatches
        assert dispatch.message == text
        held = scene.acquire(trigger)
        assert isinstance(held, Acquired)
        scene.store.checkpoint(held.lease, text)
        assert scene.record().checkpoint == text
        scene.finish(held, reason=text[:100], result=text)
        answer = scene.begin(trigger).answer
        assert isinstance(answer, Answered)
        assert (answer.result, answer.reason) == (text, text[:100])
