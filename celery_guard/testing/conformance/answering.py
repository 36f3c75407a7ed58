"""Endings that nobody was there to see: whoever waits for the result gets an answer, once."""

from __future__ import annotations

import pytest

from celery_guard.core.contract import Answered, Done, Joined
from celery_guard.core.options import Overlap
from celery_guard.core.rules import MAX_NOTICES, RESEND, RESEND_MAX
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, accepted, ids, keys


class Answering(Harness):
    """Triggers that joined an execution, and executions that ended passively."""

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
    def test_those_that_joined_are_sent_when_there_is_an_outcome(self, scene: Scene, state: State) -> None:
        trigger = scene.trigger()
        held = scene.acquire(trigger)
        joined = [scene.another(trigger, f"other-{n}") for n in range(3)]
        for one in joined:
            scene.begin(one)
        done = scene.finish(held, state, result="42")
        assert sorted(ids(done.dispatches)) == ["id-other-0", "id-other-1", "id-other-2"]
        assert [d.message for d in done.dispatches] == [
            scene.known(d.trigger_id).message for d in done.dispatches
        ]
        for one in joined:
            answer = scene.begin(one).answer
            assert isinstance(answer, Answered)
            assert (answer.state, answer.result, answer.trigger_id) == (state, "42", trigger.trigger_id)

    def test_each_is_answered_once_and_a_copy_of_it_all_the_same(self, scene: Scene) -> None:
        trigger = scene.trigger()
        held = scene.acquire(trigger)
        other = scene.another(trigger)
        scene.begin(other)
        scene.finish(held)
        assert isinstance(scene.begin(other).answer, Answered)
        scene.elapse(2 * RESEND_MAX)
        assert list(scene.sweep().dispatches) == []
        assert isinstance(scene.begin(other).answer, Answered)

    def test_an_answer_that_got_lost_is_sent_again_and_then_given_up(self, scene: Scene) -> None:
        trigger = scene.trigger(keep=24 * 60 * MINUTE)
        held = scene.acquire(trigger)
        scene.begin(scene.another(trigger))
        scene.finish(held)
        waits, last = [], scene.now()
        for _ in range(3 * 24 * 60):
            scene.elapse(5000)
            if ids(scene.sweep().dispatches) == ["id-another"]:
                waits.append(scene.now() - last)
                last = scene.now()
        assert len(waits) == MAX_NOTICES
        assert waits[0] == RESEND
        assert waits == sorted(waits)
        assert waits[-1] <= RESEND_MAX

    def test_only_those_without_an_answer_are_sent_again(self, scene: Scene) -> None:
        trigger = scene.trigger()
        held = scene.acquire(trigger)
        for n in range(3):
            scene.begin(scene.another(trigger, f"other-{n}"))
        scene.finish(held)
        scene.begin(scene.known("id-other-1"))
        scene.elapse(RESEND)
        assert sorted(ids(scene.sweep().dispatches)) == ["id-other-0", "id-other-2"]

    def test_a_finished_execution_without_followers_owes_nothing(self, scene: Scene) -> None:
        done = scene.finish(scene.acquire(scene.trigger()))
        assert list(done.dispatches) == []
        scene.elapse(2 * RESEND_MAX)
        assert list(scene.sweep().dispatches) == []

    def test_who_joined_is_answered_after_a_retry(self, scene: Scene) -> None:
        trigger = scene.trigger()
        held = scene.acquire(trigger)
        scene.begin(scene.another(trigger))
        done = scene.finish(held, State.RETRYING, message=trigger.message, retries=1)
        assert list(done.dispatches) == []
        held = scene.acquire(trigger, retries=1)
        assert ids(scene.finish(held).dispatches) == ["id-another"]

    def test_who_joined_a_parked_one_is_answered_after_its_run(self, scene: Scene) -> None:
        holder = scene.hold()
        late = scene.trigger("late", overlap=Overlap.QUEUE)
        scene.begin(late)
        other = scene.another(late)
        assert scene.begin(other).answer == Joined(trigger_id="id-late")
        scene.finish(holder)
        assert ids(scene.finish(scene.acquire(late)).dispatches) == ["id-another"]

    @pytest.mark.parametrize("way", ["revoke", "wait_for", "coalesce", "replace", "dead"])
    def test_a_passive_ending_sends_its_message_and_those_that_joined(self, scene: Scene, way: str) -> None:
        policy = {"coalesce": Overlap.COALESCE, "replace": Overlap.REPLACE}.get(way, Overlap.WAIT)
        trigger = scene.trigger("late", overlap=policy, wait_for=MINUTE, max_attempts=1)
        if way in ("replace", "dead"):
            scene.acquire(trigger, owner="mine/1")
        else:
            scene.hold(order=1)
            scene.begin(trigger)
        scene.begin(scene.another(trigger))
        if way == "revoke":
            done = scene.store.revoke("late", "")
            assert isinstance(done, Done)
            dispatches = done.dispatches
        elif way == "wait_for":
            scene.elapse(MINUTE)
            dispatches = scene.sweep().dispatches
        elif way == "dead":
            done = scene.store.lose("late", "mine", "it died")
            assert isinstance(done, Done)
            dispatches = done.dispatches
        else:
            dispatches = scene.begin(scene.trigger("newer", overlap=policy)).dispatches
        assert sorted(ids(dispatches)) == ["id-another", "id-late"]
        assert scene.state("late").final
        for dispatch in dispatches:
            answer = scene.begin(scene.known(dispatch.trigger_id)).answer
            assert isinstance(answer, Answered)
            assert answer.state is scene.state("late")
        # At most its own message once more: nobody knows in which order they arrive.
        scene.elapse(RESEND_MAX)
        late = [d for d in scene.sweep().dispatches if d.key == "late"]
        assert ids(late) in ([], ["id-late"])
        scene.deliver(late)
        scene.elapse(2 * RESEND_MAX)
        assert "late" not in keys(scene.sweep().dispatches)

    def test_a_lost_message_of_a_passive_ending_is_sent_again(self, scene: Scene) -> None:
        scene.hold()
        late = scene.trigger("late", overlap=Overlap.WAIT)
        scene.begin(late)
        scene.store.revoke("late", "by an operator")
        scene.elapse(RESEND)
        assert ids(scene.sweep().dispatches) == ["id-late"]
        scene.begin(late)
        scene.elapse(2 * RESEND_MAX)
        assert list(scene.sweep().dispatches) == []

    def test_a_passive_ending_owes_its_own_answer_though_who_joined_has_theirs(self, scene: Scene) -> None:
        scene.hold()
        late = scene.trigger("late", overlap=Overlap.WAIT)
        scene.begin(late)
        other = scene.another(late)
        scene.begin(other)
        scene.store.revoke("late", "by an operator")
        assert isinstance(scene.begin(other).answer, Answered)
        scene.elapse(RESEND)
        assert ids(scene.sweep().dispatches) == ["id-late"]

    def test_an_ending_in_the_delivery_itself_is_not_sent(self, scene: Scene) -> None:
        scene.hold()
        assert list(scene.begin(scene.trigger("late")).dispatches) == []
        trigger = scene.trigger("expired")
        done = scene.store.end(trigger, state=State.EXPIRED, reason="too old")
        assert accepted(done, State.EXPIRED)
        scene.elapse(2 * RESEND_MAX)
        assert not {"id-late", "id-expired"} & set(ids(scene.sweep().dispatches))

    def test_an_ending_from_outside_answers_those_that_joined(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.acquire(trigger, owner="mine/1")
        scene.begin(scene.another(trigger))
        done = scene.store.end(trigger, state=State.FAILED, reason="time limit", delivery="mine")
        assert isinstance(done, Done)
        assert ids(done.dispatches) == ["id-another"]

    def test_who_was_never_answered_belongs_to_the_next_execution(self, scene: Scene) -> None:
        trigger = scene.trigger()
        held = scene.acquire(trigger)
        other = scene.another(trigger)
        scene.begin(other)
        scene.finish(held, State.FAILED)
        third = scene.acquire(scene.another(trigger, "third"))
        assert scene.begin(other).answer == Joined(trigger_id="id-third")
        assert ids(scene.finish(third).dispatches) == ["id-another"]
