"""``coalesce``: exactly one trailing run, which starts after the newest trigger and has its arguments."""

from __future__ import annotations

from typing import Any

from celery_guard.core.contract import Answered, Begun, Parked
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, ids, keys


class Coalescing(Harness):
    """One trailing run, the newest one's; those it stands for end as coalesced, and say by what."""

    def _trigger(self, scene: Scene, name: str, **options: Any) -> Begun:
        return scene.begin(scene.trigger(name, **({"overlap": Overlap.COALESCE} | options)))

    def test_a_free_lock_is_taken_at_once(self, scene: Scene) -> None:
        scene.acquire(scene.trigger(overlap=Overlap.COALESCE))

    def test_many_triggers_make_one_trailing_run_with_the_newest_arguments(self, scene: Scene) -> None:
        holder = scene.hold(overlap=Overlap.COALESCE)
        for n in range(30):
            assert isinstance(self._trigger(scene, f"{n}").answer, Parked)
        assert scene.deliver(scene.finish(holder).dispatches) == ["29"]
        assert [scene.state(f"{n}") for n in range(29)] == [State.COALESCED] * 29
        assert scene.record("0").by == "1"
        assert scene.record("28").by == "29"

    def test_newest_is_what_was_published_last_however_delivered(self, scene: Scene) -> None:
        holder = scene.hold(overlap=Overlap.COALESCE)
        triggers = [scene.trigger(f"{n}", overlap=Overlap.COALESCE) for n in range(5)]
        for n in (3, 1, 4, 0, 2):
            scene.begin(triggers[n])
        assert [scene.state(f"{n}") for n in range(5)] == [State.COALESCED] * 4 + [State.WAITING]
        assert scene.deliver(scene.finish(holder).dispatches) == ["4"]

    def test_the_ones_it_stands_for_are_answered(self, scene: Scene) -> None:
        scene.hold(overlap=Overlap.COALESCE)
        self._trigger(scene, "old")
        begun = self._trigger(scene, "new")
        assert ids(begun.dispatches) == ["id-old"]
        answer = scene.begin(scene.known("id-old")).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.by) == (State.COALESCED, "new")

    def test_a_late_older_trigger_is_coalesced_into_the_running_newer_one(self, scene: Scene) -> None:
        old = scene.trigger("old", overlap=Overlap.COALESCE)
        holder = scene.hold("newer", overlap=Overlap.COALESCE)
        answer = scene.begin(old).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.by) == (State.COALESCED, "newer")
        assert list(scene.finish(holder).dispatches) == []

    def test_a_copy_of_the_trailing_one_changes_nothing(self, scene: Scene) -> None:
        scene.hold(overlap=Overlap.COALESCE)
        self._trigger(scene, "late")
        begun = scene.begin(scene.known("id-late"))
        assert begun.answer == Parked(ahead=0)
        assert list(begun.dispatches) == []

    def test_a_trigger_after_the_release_is_the_trailing_run(self, scene: Scene) -> None:
        holder = scene.hold(overlap=Overlap.COALESCE)
        self._trigger(scene, "woken")
        scene.finish(holder)
        begun = self._trigger(scene, "newest")
        assert isinstance(begun.answer, Parked)
        assert scene.state("woken") is State.COALESCED
        assert scene.deliver(begun.dispatches) == ["newest"]

    def test_a_copy_that_begins_before_the_dispatch_runs_it_once(self, scene: Scene) -> None:
        holder = scene.hold(overlap=Overlap.COALESCE)
        self._trigger(scene, "late")
        scene.finish(holder)
        scene.finish(scene.acquire(scene.known("id-late")))
        assert scene.deliver(scene.sweep().dispatches) == []
        assert isinstance(scene.begin(scene.known("id-late")).answer, Answered)

    def test_a_trigger_during_the_trailing_run_makes_one_more(self, scene: Scene) -> None:
        holder = scene.hold(overlap=Overlap.COALESCE)
        self._trigger(scene, "second")
        scene.finish(holder)
        second = scene.acquire(scene.known("id-second"))
        self._trigger(scene, "third")
        assert keys(scene.finish(second).dispatches) == ["third"]

    def test_the_newest_runs_though_the_holder_is_killed(self, scene: Scene) -> None:
        holder = scene.trigger("holder", overlap=Overlap.COALESCE)
        scene.acquire(holder, owner="mine/1")
        for n in range(5):
            self._trigger(scene, f"{n}")
        done = scene.store.lose("holder", "mine", "it died")
        assert scene.deliver(getattr(done, "dispatches", ())) == ["4"]
        found = scene.record("holder")
        assert (found.state, found.by) == (State.COALESCED, "4")

    def test_the_newest_runs_though_the_holder_falls_silent(self, scene: Scene) -> None:
        scene.acquire(scene.trigger("holder", overlap=Overlap.COALESCE, lease=MINUTE))
        for n in range(5):
            self._trigger(scene, f"{n}")
        scene.elapse(MINUTE)
        swept = scene.sweep()
        assert swept.lost == ["holder"]
        assert scene.deliver(swept.dispatches) == ["4"]
        assert scene.state("holder") is State.COALESCED

    def test_a_killed_holder_that_nobody_follows_runs_again(self, scene: Scene) -> None:
        scene.acquire(scene.trigger("holder", overlap=Overlap.COALESCE), owner="mine/1")
        done = scene.store.lose("holder", "mine", "it died")
        assert scene.deliver(getattr(done, "dispatches", ())) == ["holder"]

    def test_each_lock_key_has_its_own_trailing_run(self, scene: Scene) -> None:
        holders = [scene.hold(f"h{n}", lock_key=f"lock-{n}", overlap=Overlap.COALESCE) for n in range(3)]
        for n in range(3):
            self._trigger(scene, f"t{n}", lock_key=f"lock-{n}")
        for n, holder in enumerate(holders):
            assert keys(scene.finish(holder).dispatches) == [f"t{n}"]

    def test_the_store_does_not_believe_the_future(self, scene: Scene) -> None:
        holder = scene.hold(overlap=Overlap.COALESCE)
        self._trigger(scene, "from a fast clock", order=scene.now() + 60 * MINUTE)
        self._trigger(scene, "newest")
        assert scene.deliver(scene.finish(holder).dispatches) == ["newest"]
