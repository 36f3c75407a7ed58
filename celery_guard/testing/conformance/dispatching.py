"""The dispatcher: one at a time across all workers; what nobody delivered is sent once more."""

from __future__ import annotations

import itertools

import pytest

from celery_guard.core.contract import Dispatch, Parked
from celery_guard.core.options import Overlap
from celery_guard.core.rules import LOOK_AGAIN, MAX_NOTICES, RESEND, RESEND_MAX
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, ids, keys
from celery_guard.testing.waiting import wait_until


class Dispatching(Harness):
    """Election, what a sweep finds, and how often it says so."""

    def test_one_dispatcher_at_a_time(self, scene: Scene) -> None:
        assert scene.store.sweep("a", ttl=1000).leader
        assert not scene.store.sweep("b", ttl=1000).leader
        assert scene.store.sweep("a", ttl=1000).leader

    def test_another_one_takes_over_when_its_time_is_over_and_not_before(self, scene: Scene) -> None:
        scene.store.sweep("a", ttl=1000)
        scene.elapse(999)
        assert not scene.store.sweep("b", ttl=1000).leader
        scene.elapse(1)
        assert scene.store.sweep("b", ttl=1000).leader
        assert not scene.store.sweep("a", ttl=1000).leader

    def test_a_dispatcher_that_goes_on_stays_in_office(self, scene: Scene) -> None:
        for _ in range(5):
            assert scene.store.sweep("a", ttl=1000).leader
            scene.elapse(999)
            assert not scene.store.sweep("b", ttl=1000).leader

    def test_who_is_not_in_office_does_nothing(self, scene: Scene) -> None:
        scene.acquire(scene.trigger(lease=MINUTE))
        scene.elapse(MINUTE)
        scene.store.sweep("a", ttl=1000, limit=0)
        swept = scene.store.sweep("b", ttl=1000)
        assert (list(swept.dispatches), list(swept.lost)) == ([], [])
        assert scene.state() is State.RUNNING

    def test_an_empty_store_has_nothing_to_do(self, scene: Scene) -> None:
        swept = scene.sweep()
        assert (list(swept.dispatches), list(swept.lost)) == ([], [])

    def test_a_gone_owner_is_found_and_its_message_sent(self, scene: Scene) -> None:
        trigger = scene.trigger(lease=MINUTE)
        scene.acquire(trigger)
        scene.elapse(MINUTE)
        swept = scene.sweep()
        assert list(swept.lost) == ["one"]
        assert list(swept.dispatches) == [
            Dispatch(key="one", trigger_id="id-one", message=trigger.message, why="lost")
        ]
        assert scene.state() is State.LOST

    def test_a_recorded_trigger_that_nobody_delivered_is_sent(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=MINUTE)
        scene.elapse(MINUTE - 1)
        assert list(scene.sweep().dispatches) == []
        scene.elapse(1)
        assert list(scene.sweep().dispatches) == [
            Dispatch(key="one", trigger_id="id-one", message=trigger.message, why="pending")
        ]

    def test_it_is_sent_again_with_growing_pauses_as_long_as_it_takes(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=0)
        times = []
        for _ in range(500):
            scene.elapse(5000)
            if scene.sweep().dispatches:
                times.append(scene.now())
        pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert pauses[0] <= 2 * RESEND
        assert pauses == sorted(pauses)
        assert pauses[-1] == pauses[-2] == RESEND_MAX
        scene.acquire(trigger)

    def test_a_woken_waiter_whose_message_got_lost_is_sent_again(self, scene: Scene) -> None:
        holder = scene.hold()
        scene.begin(scene.trigger("late", overlap=Overlap.QUEUE))
        scene.finish(holder)
        scene.elapse(RESEND)
        assert keys(scene.sweep().dispatches) == ["late"]

    def test_a_woken_waiter_that_never_comes_lets_the_others_go_and_keeps_its_place(
        self, scene: Scene
    ) -> None:
        """Its message cannot begin: its arguments no longer fit the task's scope, its queue has no worker."""
        holder = scene.hold()
        first, second = (scene.trigger(name, overlap=Overlap.QUEUE) for name in ("first", "second"))
        for trigger in (first, second):
            scene.elapse(1)
            scene.begin(trigger)
        scene.finish(holder)
        sent: list[str] = []
        for _ in range(MAX_NOTICES + 1):
            assert "second" not in sent
            scene.elapse(RESEND_MAX)
            sent += keys(scene.sweep().dispatches)
        assert sent.count("first") == MAX_NOTICES + 1
        assert "second" in sent
        scene.elapse(1)
        third = scene.trigger("third", overlap=Overlap.QUEUE)
        held = scene.acquire(second)
        for trigger in (third, first):
            scene.elapse(1)
            assert isinstance(scene.begin(trigger).answer, Parked)
        assert keys(scene.finish(held).dispatches) == ["first"]

    def test_a_lost_one_whose_message_got_lost_is_sent_again(self, scene: Scene) -> None:
        scene.acquire(scene.trigger(), owner="mine/1")
        scene.store.lose("one", "mine", "it died")
        scene.elapse(RESEND)
        assert keys(scene.sweep().dispatches) == ["one"]

    def test_an_interrupted_one_whose_message_got_lost_is_sent_again(self, scene: Scene) -> None:
        scene.finish(scene.acquire(scene.trigger()), State.INTERRUPTED)
        scene.elapse(RESEND)
        assert keys(scene.sweep().dispatches) == ["one"]

    def test_what_is_parked_is_not_sent_while_the_lock_is_held(self, scene: Scene) -> None:
        scene.hold(lease=10 * LOOK_AGAIN)
        scene.begin(scene.trigger("late", overlap=Overlap.QUEUE))
        for _ in range(5):
            scene.elapse(LOOK_AGAIN)
            assert list(scene.sweep().dispatches) == []
        assert scene.state("late") is State.WAITING

    def test_a_living_owner_is_left_alone(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger(lease=MINUTE))
        for _ in range(10):
            scene.elapse(MINUTE // 2)
            scene.store.renew([held.lease])
            swept = scene.sweep()
            assert (list(swept.dispatches), list(swept.lost)) == ([], [])

    def test_a_limit_takes_the_longest_due_first_and_the_rest_later(self, scene: Scene) -> None:
        for n in range(7):
            scene.store.reserve(scene.trigger(f"{n}", lock_key=f"{n}"), resend_after=1000)
        scene.elapse(1000)
        sent = [ids(scene.sweep(limit=3).dispatches) for _ in range(4)]
        assert sent == [["id-0", "id-1", "id-2"], ["id-3", "id-4", "id-5"], ["id-6"], []]

    def test_a_sweep_that_took_as_many_as_it_may_says_that_there_may_be_more(self, scene: Scene) -> None:
        scene.hold(lease=10 * LOOK_AGAIN)
        for n in range(3):
            scene.begin(scene.trigger(f"{n}", overlap=Overlap.QUEUE))
        scene.elapse(LOOK_AGAIN)  # each is looked at; nobody is sent
        assert [scene.sweep(limit=2).more for _ in range(3)] == [True, False, False]
        assert not scene.store.sweep("another", ttl=1000).more

    def test_a_thousand_that_wait_for_one_lock_do_not_hold_up_the_recovery_of_another(
        self, scene: Scene
    ) -> None:
        scene.hold("big holder", lock_key="big", lease=10 * LOOK_AGAIN)
        for n in range(1000 if self.rounds >= 20 else 100):
            scene.begin(scene.trigger(f"big {n}", lock_key="big", overlap=Overlap.QUEUE))
        scene.acquire(scene.trigger("small holder", lock_key="small", lease=LOOK_AGAIN))
        scene.begin(scene.trigger("small", lock_key="small", overlap=Overlap.QUEUE))
        scene.elapse(LOOK_AGAIN)
        sent: list[str] = []
        for _ in range(20):
            swept = scene.sweep()
            sent.extend(keys(swept.dispatches))
            if not swept.more:
                break
        assert "small" in sent

    @pytest.mark.parametrize("overlap", [Overlap.WAIT, Overlap.QUEUE])
    def test_a_lost_one_comes_before_those_that_waited_for_it(self, scene: Scene, overlap: Overlap) -> None:
        scene.acquire(scene.trigger("first", overlap=overlap, lease=MINUTE))
        for n in range(3):
            scene.begin(scene.trigger(f"{n}", overlap=overlap))
        scene.elapse(MINUTE)
        assert scene.deliver(scene.sweep().dispatches) == ["first", "0", "1", "2"]

    def test_a_message_sent_twice_runs_once(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=0)
        dispatches = [*scene.sweep().dispatches, *scene.sweep().dispatches]
        assert scene.deliver([*dispatches, *dispatches]) == ["one"]

    def test_on_the_stores_own_time_a_gone_owner_is_found(self, live: Scene) -> None:
        held = live.acquire(live.trigger(lease=300))

        def found() -> bool:
            return "one" in live.store.sweep("dispatcher", ttl=1000).lost

        wait_until(found, 10, "the sweep to find it", interval=0.01)
        assert live.now() >= held.expires_at
        assert live.state() is State.LOST
