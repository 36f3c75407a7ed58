"""``slots``: as many at a time as there are, each with a token of its own; the next one meets its policy."""

from __future__ import annotations

from functools import partial

import pytest

from celery_guard.core.contract import Acquired, Answered, Done, Finish, Parked, Refused, Store, Trigger
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.crowd import Crowd
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, accepted, ids, keys

THREE = {"slots": 3, "lease": MINUTE}


def hold_all(scene: Scene, many: int = 3, **options: object) -> list[Acquired]:
    """Take ``many`` of three slots, as ``h0``, ``h1``, ..."""
    return [scene.acquire(scene.trigger(f"h{n}", **(THREE | options))) for n in range(many)]


class Slots(Harness):
    """A lock that several may hold: never more, never fewer than there is work for."""

    def test_as_many_hold_it_at_once_by_strictly_increasing_tokens(self, scene: Scene) -> None:
        tokens = [held.lease.token for held in hold_all(scene)]
        assert tokens == sorted(set(tokens))
        assert [scene.state(f"h{n}") for n in range(3)] == [State.RUNNING] * 3

    def test_each_holder_owns_its_own(self, scene: Scene) -> None:
        for held in hold_all(scene):
            assert accepted(scene.renew(held.lease), State.RUNNING)
            assert accepted(scene.store.verify(held.lease), State.RUNNING)
            assert accepted(scene.store.checkpoint(held.lease, "so far"), State.RUNNING)
            assert accepted(scene.finish(held), State.SUCCEEDED)

    def test_the_fourth_is_skipped_and_names_a_holder(self, scene: Scene) -> None:
        hold_all(scene)
        answer = scene.begin(scene.trigger("fourth", **THREE)).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.by, answer.reason) == (State.SKIPPED, "h0", "held by h0")

    @pytest.mark.parametrize("overlap", [Overlap.WAIT, Overlap.QUEUE, Overlap.COALESCE])
    @pytest.mark.parametrize("ended", [0, 1, 2])
    def test_the_fourth_waits_for_whichever_ends_first(
        self, scene: Scene, overlap: Overlap, ended: int
    ) -> None:
        holders = hold_all(scene, overlap=overlap)
        assert scene.begin(scene.trigger("fourth", overlap=overlap, **THREE)).answer == Parked(ahead=0)
        assert keys(scene.finish(holders[ended]).dispatches) == ["fourth"]
        scene.acquire(scene.known("id-fourth"))

    def test_those_that_coalesce_make_one_run_behind_all_of_them(self, scene: Scene) -> None:
        holders = hold_all(scene, overlap=Overlap.COALESCE)
        for n in range(5):
            scene.begin(scene.trigger(f"{n}", overlap=Overlap.COALESCE, **THREE))
        assert [scene.state(f"{n}") for n in range(5)] == [State.COALESCED] * 4 + [State.WAITING]
        assert scene.deliver(scene.finish(holders[1]).dispatches) == ["4"]

    def test_the_one_that_replaces_takes_the_place_of_the_oldest(self, scene: Scene) -> None:
        holders = hold_all(scene, overlap=Overlap.REPLACE)
        begun = scene.begin(scene.trigger("new", overlap=Overlap.REPLACE, **THREE))
        assert isinstance(begun.answer, Acquired)
        assert begun.answer.lease.token > holders[2].lease.token
        assert ids(begun.dispatches) == ["id-h0"]
        assert [scene.state(f"h{n}") for n in range(3)] == [State.REPLACED, State.RUNNING, State.RUNNING]
        assert isinstance(scene.end(holders[0]), Refused)
        assert accepted(scene.renew(holders[1].lease), State.RUNNING)
        assert isinstance(scene.begin(scene.trigger("next", **THREE)).answer, Answered)

    def test_nobody_is_replaced_while_there_is_room(self, scene: Scene) -> None:
        hold_all(scene, 2, overlap=Overlap.REPLACE)
        begun = scene.begin(scene.trigger("third", overlap=Overlap.REPLACE, **THREE))
        assert isinstance(begun.answer, Acquired)
        assert list(begun.dispatches) == []

    def test_nobody_is_replaced_for_room_that_is_promised_to_another(self, scene: Scene) -> None:
        holders = hold_all(scene)
        scene.begin(scene.trigger("turn", overlap=Overlap.QUEUE, **THREE))
        scene.finish(holders[0])
        answer = scene.begin(scene.trigger("new", overlap=Overlap.REPLACE, **THREE)).answer
        assert isinstance(answer, Answered)
        assert answer.state is State.SKIPPED
        assert [scene.state(f"h{n}") for n in (1, 2)] == [State.RUNNING] * 2
        scene.acquire(scene.known("id-turn"))

    def test_a_release_wakes_one_and_two_wake_two(self, scene: Scene) -> None:
        holders = hold_all(scene)
        for n in range(4):
            scene.begin(scene.trigger(f"{n}", overlap=Overlap.QUEUE, **THREE))
        assert keys(scene.finish(holders[0]).dispatches) == ["0"]
        # the room that one was woken for is promised: the next release is for the next one
        assert keys(scene.finish(holders[1]).dispatches) == ["1"]
        assert [scene.state(f"{n}") for n in range(4)] == [State.PENDING] * 2 + [State.WAITING] * 2
        scene.acquire(scene.known("id-1"))
        scene.acquire(scene.known("id-0"))

    def test_a_newcomer_does_not_take_the_room_of_the_one_whose_turn_it_is(self, scene: Scene) -> None:
        holders = hold_all(scene)
        scene.begin(scene.trigger("turn", overlap=Overlap.QUEUE, **THREE))
        scene.finish(holders[0])
        assert isinstance(scene.begin(scene.trigger("newcomer", **THREE)).answer, Answered)
        scene.finish(holders[1])  # now there is room for both
        scene.acquire(scene.trigger("another", **THREE))
        scene.acquire(scene.known("id-turn"))

    def test_the_slot_of_a_silent_holder_is_given_again_at_the_end_of_its_lease(self, scene: Scene) -> None:
        silent = scene.acquire(scene.trigger("silent", slots=2, lease=MINUTE))
        living = scene.acquire(scene.trigger("living", slots=2, lease=60 * MINUTE))
        late = scene.trigger("late", slots=2, overlap=Overlap.QUEUE)
        scene.begin(late)
        scene.clock.at(silent.expires_at - 1)
        assert scene.sweep().dispatches == []
        scene.clock.at(silent.expires_at)
        assert "late" in keys(scene.sweep().dispatches)
        assert scene.acquire(late).lease.token > living.lease.token
        assert accepted(scene.renew(living.lease), State.RUNNING)

    def test_a_stale_owner_of_one_slot_writes_nothing_after_the_takeover(self, scene: Scene) -> None:
        stale = scene.acquire(scene.trigger("stale", slots=2, lease=MINUTE))
        scene.acquire(scene.trigger("living", slots=2, lease=60 * MINUTE))
        scene.elapse(MINUTE)
        heir = scene.acquire(scene.trigger("heir", slots=2, lease=60 * MINUTE))
        for answer in (
            scene.renew(stale.lease),
            scene.store.verify(stale.lease),
            scene.store.checkpoint(stale.lease, "late"),
            scene.end(stale),
        ):
            assert isinstance(answer, Refused)
        # nor does its late end free the slot of another
        assert isinstance(scene.begin(scene.trigger("third", slots=2)).answer, Answered)
        assert accepted(scene.renew(heir.lease), State.RUNNING)

    def test_a_lost_one_keeps_its_place_in_its_slot(self, scene: Scene) -> None:
        first = scene.trigger("first", slots=2, overlap=Overlap.QUEUE)
        scene.acquire(first, owner="mine/1")
        scene.hold("second", slots=2)
        for n in range(2):
            scene.begin(scene.trigger(f"{n}", slots=2, overlap=Overlap.QUEUE))
        done = scene.store.lose("first", "mine", "it died")
        assert isinstance(done, Done)
        assert scene.deliver(done.dispatches) == ["first", "0", "1"]

    def test_more_slots_are_used_by_the_next_trigger(self, scene: Scene) -> None:
        scene.hold("h0")
        scene.hold("h1", slots=2)
        assert isinstance(scene.begin(scene.trigger("h2", slots=2)).answer, Answered)

    def test_fewer_slots_hold_the_next_one_back_until_enough_have_ended(self, scene: Scene) -> None:
        holders = hold_all(scene)
        late = scene.trigger("late", overlap=Overlap.QUEUE)
        scene.begin(late)
        assert list(scene.finish(holders[0]).dispatches) == []
        assert isinstance(scene.begin(late).answer, Parked)
        assert list(scene.finish(holders[2]).dispatches) == []
        assert keys(scene.finish(holders[1]).dispatches) == ["late"]

    def test_the_one_that_replaces_in_fewer_slots_leaves_none_too_many(self, scene: Scene) -> None:
        hold_all(scene, overlap=Overlap.REPLACE)
        begun = scene.begin(scene.trigger("new", overlap=Overlap.REPLACE, slots=2))
        assert isinstance(begun.answer, Acquired)
        assert [scene.state(f"h{n}") for n in range(3)] == [State.REPLACED] * 2 + [State.RUNNING]
        assert ids(begun.dispatches) == ["id-h0", "id-h1"]

    def test_a_try_that_kept_its_slot_goes_on_in_it(self, scene: Scene) -> None:
        trigger = scene.trigger("own", hold=True, **THREE)
        held = scene.acquire(trigger)
        scene.finish(held, State.RETRYING, message=trigger.message, retries=1, delay=1000)
        hold_all(scene, 2)
        assert isinstance(scene.begin(scene.trigger("fourth", **THREE)).answer, Answered)
        scene.acquire(trigger, retries=1)
        assert isinstance(scene.begin(scene.trigger("fifth", **THREE)).answer, Answered)

    def test_of_many_at_once_never_more_than_there_are_slots(self, scene: Scene) -> None:
        last = 0
        with Crowd(partial(self.connect, scene.clock), self.contenders) as crowd:
            for turn in range(self.how_often() // 2):
                triggers = [scene.trigger(f"{turn}-{n}", slots=3, keep=0) for n in range(self.contenders)]

                def begin(n: int, store: Store, triggers: list[Trigger] = triggers) -> object:
                    return store.begin(triggers[n], owner=f"{n}/1").answer

                held = [answer for answer in crowd.round(begin) if isinstance(answer, Acquired)]
                assert len(held) == 3
                tokens = sorted(one.lease.token for one in held)
                assert tokens == sorted(set(tokens))
                assert tokens[0] > last
                last = tokens[-1]
                for one in held:
                    scene.finish(one)
                scene.elapse(1)
                while scene.store.purge(1000):
                    pass

    def test_many_that_end_at_once_wake_as_many(self, scene: Scene) -> None:
        with Crowd(partial(self.connect, scene.clock), 3) as crowd:
            for turn in range(self.how_often()):
                held = [scene.acquire(scene.trigger(f"{turn} h{n}", slots=3, keep=MINUTE)) for n in range(3)]
                for n in range(5):
                    scene.begin(scene.trigger(f"{turn} {n}", slots=3, overlap=Overlap.QUEUE, keep=MINUTE))

                def end(n: int, store: Store, held: list[Acquired] = held) -> Done | Refused:
                    return store.finish(Finish(lease=held[n].lease, state=State.SUCCEEDED))

                woken = [d for done in crowd.round(end) for d in getattr(done, "dispatches", ())]
                assert sorted(keys(woken)) == [f"{turn} {n}" for n in range(3)]
                assert sorted(scene.deliver(woken)) == [f"{turn} {n}" for n in range(5)]
                scene.elapse(MINUTE)
                while scene.store.purge(1000):
                    pass
