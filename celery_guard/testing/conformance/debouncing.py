"""``debounce``, ``max_delay`` and ``oldest``: when the one run of ``coalesce`` starts, and whose arguments it has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from celery_guard.core.contract import (
    Acquired,
    Answered,
    Begun,
    Dispatch,
    Done,
    Finish,
    Parked,
    Refused,
    Store,
)
from celery_guard.core.options import Overlap
from celery_guard.core.rules import RESEND
from celery_guard.core.states import State
from celery_guard.testing.conformance.crowd import Crowd
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, ids, keys

QUIET = 1000
HOUR = 60 * MINUTE


def trigger(scene: Scene, name: str, **options: Any) -> Begun:
    """A trigger comes now; those that it stands for get their answer."""
    begun = scene.begin(scene.trigger(name, **({"overlap": Overlap.COALESCE, "debounce": QUIET} | options)))
    for dispatch in begun.dispatches:
        if dispatch.why == "coalesced":
            scene.begin(scene.known(dispatch.trigger_id))
    return begun


def starts_at(scene: Scene, name: str, when: int) -> None:
    """Its message is sent at ``when`` and not before, and then it may start."""
    scene.clock.at(when - 1)
    assert scene.sweep().dispatches == []
    assert isinstance(scene.begin(scene.known(f"id-{name}")).answer, Parked)
    scene.clock.at(when)
    assert ids(scene.sweep().dispatches) == [f"id-{name}"]
    scene.acquire(scene.known(f"id-{name}"))


class Debouncing(Harness):
    """Not before it was quiet for so long, not later than newer triggers may put it off."""

    def test_nothing_runs_before_the_quiet_time_is_over(self, scene: Scene) -> None:
        assert trigger(scene, "one").answer == Parked(ahead=0)
        assert scene.state() is State.WAITING
        starts_at(scene, "one", scene.now() + QUIET)

    def test_a_burst_makes_one_run_after_the_newest_with_its_arguments(self, scene: Scene) -> None:
        for n in range(10):
            trigger(scene, f"{n}")
            scene.elapse(QUIET // 2)
        quiet = scene.now() + QUIET - QUIET // 2
        assert [scene.state(f"{n}") for n in range(10)] == [State.COALESCED] * 9 + [State.WAITING]
        starts_at(scene, "9", quiet)

    def test_those_it_stands_for_are_answered(self, scene: Scene) -> None:
        trigger(scene, "old")
        assert ids(trigger(scene, "new").dispatches) == ["id-old"]
        scene.elapse(HOUR)
        assert ids(scene.sweep().dispatches) == ["id-new"]  # the old one has its answer
        answer = scene.begin(scene.known("id-old")).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.by) == (State.COALESCED, "new")

    def test_copies_of_a_parked_message_do_not_put_it_off(self, scene: Scene) -> None:
        trigger(scene, "one")
        quiet = scene.now() + QUIET
        for _ in range(4):
            scene.elapse(QUIET // 5)
            assert scene.begin(scene.known("id-one")).answer == Parked(ahead=0)
        starts_at(scene, "one", quiet)

    def test_a_copy_that_comes_when_it_was_quiet_starts_it(self, scene: Scene) -> None:
        trigger(scene, "one")
        scene.elapse(QUIET)
        scene.acquire(scene.known("id-one"))

    def test_newer_triggers_do_not_put_it_off_beyond_max_delay(self, scene: Scene) -> None:
        trigger(scene, "0", max_delay=5 * QUIET)
        latest = scene.now() + 5 * QUIET
        last = 0
        while scene.now() < latest - 600:
            scene.elapse(499)
            last += 1
            trigger(scene, f"{last}", max_delay=5 * QUIET)
            assert scene.sweep().dispatches == []
        assert latest < scene.now() + QUIET
        starts_at(scene, f"{last}", latest)

    @pytest.mark.parametrize(("quiet", "longest"), [(QUIET, MINUTE), (10_000, 100_000)])
    def test_without_a_word_it_is_a_minute_or_ten_times_the_debounce(
        self, scene: Scene, quiet: int, longest: int
    ) -> None:
        trigger(scene, "0", debounce=quiet)
        first, last = scene.now(), 0
        while scene.sweep().dispatches == []:
            last += 1
            scene.elapse(quiet // 2 - 1)
            begun = trigger(scene, f"{last}", debounce=quiet)
            assert scene.now() <= first + longest + quiet
            if f"{last}" in keys(begun.dispatches):
                break
        assert longest <= scene.now() - first <= longest + quiet
        scene.acquire(scene.known(f"id-{last}"))

    def test_one_that_comes_when_it_was_put_off_long_enough_goes_at_once(self, scene: Scene) -> None:
        trigger(scene, "old", max_delay=QUIET)
        scene.elapse(2 * QUIET)  # no dispatcher looked
        begun = trigger(scene, "new", max_delay=QUIET)
        assert set(ids(begun.dispatches)) == {"id-old", "id-new"}
        assert (scene.state("old"), scene.state("new")) == (State.COALESCED, State.PENDING)
        scene.acquire(scene.known("id-new"))

    def test_the_end_of_the_holder_does_not_start_it_early(self, scene: Scene) -> None:
        holder = scene.hold(overlap=Overlap.COALESCE)
        trigger(scene, "late")
        quiet = scene.now() + QUIET
        scene.elapse(QUIET // 2)
        assert list(scene.finish(holder).dispatches) == []
        starts_at(scene, "late", quiet)

    def test_it_starts_with_the_end_of_a_holder_that_takes_longer(self, scene: Scene) -> None:
        holder = scene.hold(overlap=Overlap.COALESCE)
        trigger(scene, "late")
        scene.elapse(HOUR // 2)
        assert scene.sweep().dispatches == []
        assert keys(scene.finish(holder).dispatches) == ["late"]

    def test_max_delay_is_counted_from_when_it_could_have_run(self, scene: Scene) -> None:
        holder = scene.hold(overlap=Overlap.COALESCE)
        for n in range(10):  # nobody counts while the lock is held
            trigger(scene, f"{n}", max_delay=2 * QUIET)
            scene.elapse(QUIET // 2)
        trigger(scene, "10", max_delay=2 * QUIET)
        scene.finish(holder)
        latest = scene.now() + 2 * QUIET
        for n in range(11, 14):
            scene.elapse(QUIET // 2)
            trigger(scene, f"{n}", max_delay=2 * QUIET)
        starts_at(scene, "13", latest)

    def test_a_lost_attempt_is_not_debounced(self, scene: Scene) -> None:
        trigger(scene, "one")
        scene.elapse(QUIET)
        scene.acquire(scene.known("id-one"), owner="mine/1")
        scene.store.lose("one", "mine", "it died")
        assert scene.acquire(scene.known("id-one")).attempt == 2

    def test_a_retry_is_not_debounced(self, scene: Scene) -> None:
        trigger(scene, "one")
        scene.elapse(QUIET)
        own = scene.known("id-one")
        scene.finish(scene.acquire(own), State.RETRYING, message=own.message, retries=1)
        scene.acquire(own, retries=1)

    def test_one_that_waits_for_quiet_survives_the_loss_of_its_message(self, scene: Scene) -> None:
        trigger(scene, "one")
        scene.elapse(QUIET)
        assert ids(scene.sweep().dispatches) == ["id-one"]
        scene.elapse(RESEND)
        assert ids(scene.sweep().dispatches) == ["id-one"]

    def test_the_next_burst_waits_for_quiet_again(self, scene: Scene) -> None:
        trigger(scene, "one")
        scene.elapse(QUIET)
        scene.finish(scene.acquire(scene.known("id-one")))
        assert trigger(scene, "two").answer == Parked(ahead=0)
        starts_at(scene, "two", scene.now() + QUIET)

    # -- whose arguments ----------------------------------------------------------------------------

    def test_with_oldest_the_newcomers_end_as_coalesced_and_name_it(self, scene: Scene) -> None:
        trigger(scene, "oldest", oldest=True)
        for n in range(5):
            scene.elapse(QUIET // 2)
            answer = trigger(scene, f"{n}", oldest=True).answer
            assert isinstance(answer, Answered)
            assert (answer.state, answer.by) == (State.COALESCED, "oldest")
            assert answer.reason == "oldest runs for it, too"
        starts_at(scene, "oldest", scene.now() + QUIET)  # they put it off all the same

    def test_with_oldest_they_do_not_put_it_off_beyond_max_delay(self, scene: Scene) -> None:
        trigger(scene, "oldest", oldest=True, max_delay=2 * QUIET)
        latest = scene.now() + 2 * QUIET
        for n in range(3):
            scene.elapse(QUIET // 2)
            trigger(scene, f"{n}", oldest=True, max_delay=2 * QUIET)
        starts_at(scene, "oldest", latest)

    def test_with_oldest_the_first_that_waits_behind_the_running_one_stays(self, scene: Scene) -> None:
        holder = scene.hold(overlap=Overlap.COALESCE)
        for n in range(5):
            trigger(scene, f"{n}", oldest=True, debounce=None)
        assert [scene.state(f"{n}") for n in range(5)] == [State.WAITING] + [State.COALESCED] * 4
        assert scene.deliver(scene.finish(holder).dispatches) == ["0"]

    # -- storms -------------------------------------------------------------------------------------

    def test_a_storm_does_not_put_the_run_off_for_ever(self, scene: Scene) -> None:
        """Without a debounce. Each trigger comes just before the woken one's message is delivered."""
        options: dict[str, Any] = {"debounce": None, "max_delay": 10 * QUIET}
        holder = scene.hold(overlap=Overlap.COALESCE)
        trigger(scene, "0", **options)
        scene.finish(holder)
        could = scene.now()
        last = 0
        while scene.now() + 500 < could + 10 * QUIET:
            scene.elapse(499)
            last += 1
            assert f"{last}" in keys(trigger(scene, f"{last}", **options).dispatches)
        scene.clock.at(could + 10 * QUIET)
        # overdue: the run goes next, and the newcomers wait behind it, one for all
        for n in ("a", "b", "c"):
            assert isinstance(trigger(scene, n, **options).answer, Parked)
        assert scene.state(f"{last}") is State.PENDING
        assert [scene.state(n) for n in "abc"] == [State.COALESCED] * 2 + [State.WAITING]
        held = scene.acquire(scene.known(f"id-{last}"))
        assert scene.deliver(scene.finish(held).dispatches) == ["c"]

    def test_a_late_older_trigger_does_not_go_before_an_overdue_run(self, scene: Scene) -> None:
        options: dict[str, Any] = {"debounce": None, "max_delay": QUIET, "overlap": Overlap.COALESCE}
        holder = scene.hold(overlap=Overlap.COALESCE)
        late = scene.trigger("late", **options)
        trigger(scene, "overdue", **options)
        scene.finish(holder)
        scene.elapse(QUIET)
        answer = scene.begin(late).answer
        assert isinstance(answer, Answered)
        assert (answer.state, answer.by) == (State.COALESCED, "overdue")
        scene.acquire(scene.known("id-overdue"))

    def test_triggers_that_race_the_end_make_one_run_after_the_newest(self, scene: Scene) -> None:
        """Two triggers and the end of the running one at the same moment, in every order there is."""
        with Crowd(partial(self.connect, scene.clock), 3) as crowd:
            for turn in range(min(1000, 25 * self.how_often())):
                held = scene.hold(f"{turn} held", overlap=Overlap.COALESCE, keep=MINUTE)
                names = [f"{turn} a", f"{turn} b"]
                for name in names:
                    scene.trigger(name, overlap=Overlap.COALESCE, keep=MINUTE)

                def act(
                    n: int,
                    store: Store,
                    turn: int = turn,
                    held: Acquired = held,
                    names: Sequence[str] = names,
                ) -> Done | Refused | Begun:
                    role = (n + turn) % 3
                    if role == 2:
                        return store.finish(Finish(lease=held.lease, state=State.SUCCEEDED))
                    return store.begin(scene.known(f"id-{names[role]}"), owner=f"{names[role]}/1")

                self._one_trailing_run(scene, crowd.round(act), *names)
                scene.elapse(MINUTE)
                while scene.store.purge(1000):
                    pass

    def _one_trailing_run(
        self, scene: Scene, answers: Sequence[Done | Refused | Begun], older: str, newer: str
    ) -> None:
        dispatches: list[Dispatch] = []
        ran: list[str] = []
        for answer in answers:
            dispatches.extend(getattr(answer, "dispatches", ()))
        for answer in answers:
            if isinstance(answer, Begun) and isinstance(answer.answer, Acquired):
                # it found the lock free; the end of its body comes after all of this
                ran.append(answer.answer.lease.key)
                dispatches.extend(scene.finish(answer.answer).dispatches)
        ran += scene.deliver(dispatches)
        assert ran[-1] == newer, "no run started after the newest trigger"
        assert ran in ([newer], [older, newer])
        assert scene.state(older) is (State.SUCCEEDED if older in ran else State.COALESCED)
