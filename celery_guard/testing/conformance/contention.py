"""Contention: separate connections that act at the same moment; one wins, nothing is lost, round by round."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from celery_guard.core.contract import (
    Acquired,
    Answered,
    Begun,
    Dispatch,
    Done,
    Finish,
    InFlight,
    Joined,
    Mismatch,
    Parked,
    Refused,
    Reserved,
    Standing,
    Store,
    Sweep,
    Trigger,
)
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.crowd import Crowd, compete
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, keys


def _begin(crowd: Crowd, triggers: Sequence[Trigger], owner: str = "") -> list[Begun]:
    return crowd.round(lambda n, store: store.begin(triggers[n], owner=f"{owner}{n}/1"))


def _reserve(crowd: Crowd, triggers: Sequence[Trigger]) -> list[Reserved | Standing | Mismatch]:
    return crowd.round(lambda n, store: store.reserve(triggers[n], resend_after=MINUTE))


def _sweep(crowd: Crowd, name: str) -> list[Sweep]:
    return crowd.round(lambda n, store: store.sweep(f"{name}-{n}", ttl=1000, limit=1000))


def _finish(crowd: Crowd, held: Acquired) -> list[Done | Refused]:
    finish = Finish(lease=held.lease, state=State.SUCCEEDED)
    return crowd.round(lambda _n, store: store.finish(finish))


class Contention(Harness):
    """``contenders`` at once, ``rounds`` times."""

    def _crowd(self, scene: Scene, size: int | None = None) -> Crowd:
        return Crowd(partial(self.connect, scene.clock), size or self.contenders)

    def _clear(self, scene: Scene) -> None:
        """Forget what has ended, so that the rounds are alike. The clock moves past what is kept."""
        scene.elapse(1)
        while scene.store.purge(1000):
            pass

    def test_of_many_triggers_one_wins(self, scene: Scene) -> None:
        last = 0
        with self._crowd(scene) as crowd:
            for turn in range(self.how_often()):
                triggers = [scene.trigger(f"{turn}-{n}", keep=0) for n in range(self.contenders)]
                begun = _begin(crowd, triggers)
                winners = [one.answer for one in begun if isinstance(one.answer, Acquired)]
                assert len(winners) == 1
                others = {
                    (one.answer.state, one.answer.by) for one in begun if isinstance(one.answer, Answered)
                }
                assert others == {(State.SKIPPED, winners[0].lease.key)}
                assert winners[0].lease.token > last
                last = winners[0].lease.token
                scene.finish(winners[0])
                self._clear(scene)

    def test_of_many_copies_one_runs(self, scene: Scene) -> None:
        with self._crowd(scene) as crowd:
            for turn in range(self.how_often()):
                trigger = scene.trigger(f"{turn}", lock_key=f"{turn}")
                begun = _begin(crowd, [trigger] * self.contenders)
                kinds = Counter(type(one.answer) for one in begun)
                assert kinds == {Acquired: 1, InFlight: self.contenders - 1}
                assert scene.record(f"{turn}").attempt == 1

    def test_of_many_triggers_of_one_key_one_runs_and_the_others_join(self, scene: Scene) -> None:
        with self._crowd(scene) as crowd:
            for turn in range(self.how_often() // 4 + 1):
                first = scene.trigger(f"{turn}", lock_key=f"{turn}")
                triggers = [scene.another(first, f"{turn}-{n}") for n in range(self.contenders)]
                begun = _begin(crowd, triggers)
                winners = [one.answer for one in begun if isinstance(one.answer, Acquired)]
                assert Counter(type(one.answer) for one in begun) == {
                    Acquired: 1,
                    Joined: self.contenders - 1,
                }
                assert scene.record(f"{turn}").triggers == self.contenders
                assert len(scene.finish(winners[0]).dispatches) == self.contenders - 1

    def test_of_many_that_take_over_one_does(self, scene: Scene) -> None:
        with self._crowd(scene) as crowd:
            trigger = scene.trigger(lease=MINUTE, max_attempts=1_000_000)
            last = scene.acquire(trigger)
            for turn in range(self.how_often()):
                scene.elapse(MINUTE)
                begun = _begin(crowd, [trigger] * self.contenders, f"{turn}-")
                winners = [one.answer for one in begun if isinstance(one.answer, Acquired)]
                assert len(winners) == 1
                assert winners[0].lease.token > last.lease.token
                assert isinstance(scene.end(last), Refused)
                last = winners[0]
            assert scene.record().lost_attempts == self.how_often()

    def test_of_many_that_record_a_trigger_one_does(self, scene: Scene) -> None:
        with self._crowd(scene) as crowd:
            for turn in range(self.how_often()):
                first = scene.trigger(f"{turn}", lock_key=f"{turn}")
                triggers = [scene.another(first, f"{turn}-{n}") for n in range(self.contenders)]
                answers = _reserve(crowd, triggers)
                assert Counter(type(answer) for answer in answers) == {
                    Reserved: 1,
                    Standing: self.contenders - 1,
                }
                winner = scene.record(f"{turn}").trigger_id
                assert {a.trigger_id for a in answers if isinstance(a, Standing)} == {winner}

    def test_of_many_dispatchers_one_is_in_office(self, scene: Scene) -> None:
        with self._crowd(scene) as crowd:
            for n in range(3):
                scene.store.reserve(scene.trigger(f"{n}"), resend_after=0)
            for turn in range(self.how_often()):
                scene.elapse(60 * MINUTE)
                swept = _sweep(crowd, f"{turn}")
                assert [one.leader for one in swept].count(True) == 1
                assert sum(len(one.dispatches) for one in swept) == 3

    def test_a_finish_repeated_by_many_wakes_one_waiter_once(self, scene: Scene) -> None:
        with self._crowd(scene) as crowd:
            for turn in range(self.how_often() // 4 + 1):
                held = scene.hold(f"{turn}", keep=0)
                for n in range(3):
                    scene.begin(scene.trigger(f"{turn}-{n}", overlap=Overlap.QUEUE, keep=0))
                done = _finish(crowd, held)
                assert {type(one) for one in done} == {Done}
                woken = [d for one in done for d in getattr(one, "dispatches", ())]
                assert keys(woken) == [f"{turn}-0"]
                assert scene.deliver(woken) == [f"{turn}-{n}" for n in range(3)]
                self._clear(scene)

    def test_many_that_queue_at_once_run_one_by_one_in_order(self, scene: Scene) -> None:
        with self._crowd(scene) as crowd:
            for turn in range(self.how_often() // 20 + 1):
                holder = scene.hold(f"holder {turn}", keep=0)
                triggers = [
                    scene.trigger(f"{turn}-{n}", overlap=Overlap.QUEUE, keep=0)
                    for n in range(self.contenders)
                ]
                begun = _begin(crowd, triggers)
                assert sorted(one.answer.ahead for one in begun if isinstance(one.answer, Parked)) == list(
                    range(self.contenders)
                )
                assert scene.deliver(scene.finish(holder).dispatches) == [one.key for one in triggers]
                self._clear(scene)

    def test_many_that_coalesce_at_once_make_one_run_with_the_newest_arguments(self, scene: Scene) -> None:
        with self._crowd(scene) as crowd:
            for turn in range(self.how_often() // 10 + 1):
                holder = scene.hold(f"holder {turn}", overlap=Overlap.COALESCE, keep=MINUTE)
                triggers = [
                    scene.trigger(f"{turn}-{n}", overlap=Overlap.COALESCE, keep=MINUTE)
                    for n in range(self.contenders)
                ]
                _begin(crowd, triggers)
                assert scene.deliver(scene.finish(holder).dispatches) == [triggers[-1].key]
                states = Counter(scene.state(one.key) for one in triggers)
                assert states == {State.COALESCED: self.contenders - 1, State.SUCCEEDED: 1}
                scene.elapse(MINUTE)
                self._clear(scene)

    @pytest.mark.parametrize("overlap", [Overlap.COALESCE, Overlap.QUEUE, Overlap.WAIT])
    def test_a_trigger_that_races_the_end_always_runs(self, scene: Scene, overlap: Overlap) -> None:
        """Either the newcomer parks first and the release wakes it, or the release is first and it starts."""
        with self._crowd(scene, 2) as crowd:
            for turn in range(self.how_often() * 5):
                held = scene.hold(f"holder {turn}", overlap=overlap, keep=MINUTE)
                late = scene.trigger(f"late {turn}", overlap=overlap, keep=MINUTE)

                def act(
                    n: int, store: Store, held: Acquired = held, turn: int = turn
                ) -> Done | Refused | Begun:
                    # who is first in line changes, so that both orders happen
                    if (n + turn) % 2:
                        return store.begin(scene.known(f"id-late {turn}"), owner=f"late-{turn}/1")
                    return store.finish(Finish(lease=held.lease, state=State.SUCCEEDED))

                dispatches: list[Dispatch] = []
                ran = []
                for answer in crowd.round(act):
                    dispatches.extend(getattr(answer, "dispatches", ()))
                    if isinstance(answer, Begun) and isinstance(answer.answer, Acquired):
                        ran.append(late.key)
                        dispatches.extend(scene.finish(answer.answer).dispatches)
                    elif isinstance(answer, Begun):
                        assert isinstance(answer.answer, Parked), answer
                assert ran + scene.deliver(dispatches) == [late.key]
                scene.elapse(MINUTE)
                self._clear(scene)

    def test_of_many_that_replace_the_newest_stays(self, scene: Scene) -> None:
        size = min(self.contenders, 10)
        with self._crowd(scene, size) as crowd:
            for turn in range(self.how_often() // 4 + 1):
                triggers = [scene.trigger(f"{turn}-{n}", overlap=Overlap.REPLACE) for n in range(size)]
                begun = _begin(crowd, triggers)
                leases = [one.answer for one in begun if isinstance(one.answer, Acquired)]
                accepted = [held.lease.key for held in leases if isinstance(scene.end(held), Done)]
                assert accepted == [triggers[-1].key]
                tokens = [held.lease.token for held in leases]
                assert len(set(tokens)) == len(tokens)

    def test_processes_exclude_each_other(self, live: Scene) -> None:
        opener = self.opener()
        if opener is None:
            pytest.skip("this store lives in one process")
        wanted = max(5, self.how_often() // 2)
        names = [f"process {n}" for n in range(3)]
        with ProcessPoolExecutor(len(names), multiprocessing.get_context("spawn")) as processes:
            futures = [processes.submit(compete, opener, name, wanted) for name in names]
            attempts = sorted(one for future in futures for one in future.result(300))
        assert len(attempts) == wanted * len(names)
        for (token, _, ending), (next_token, begun, _) in itertools.pairwise(attempts):
            assert next_token > token
            assert begun > ending, "two had the lock at once"
