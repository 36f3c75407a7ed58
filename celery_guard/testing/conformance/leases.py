"""Leases: the store's clock decides expiry, to the millisecond; a repeated begin gives the same lease."""

from __future__ import annotations

import time

import pytest

from celery_guard.core.contract import Acquired, Answered, Done, InFlight, Refused
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, accepted
from celery_guard.testing.waiting import wait_until


class Leases(Harness):
    """The boundary of expiry on injected and on the store's own time, renewal, the lost answer to a begin."""

    def test_a_lease_holds_until_its_last_millisecond(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger(lease=MINUTE))
        rivals = [scene.trigger(f"rival-{n}") for n in range(2)]
        scene.clock.at(held.expires_at - 1)
        assert isinstance(scene.store.verify(held.lease), Done)
        assert isinstance(scene.begin(rivals[0]).answer, Answered)
        scene.clock.at(held.expires_at)
        assert scene.store.verify(held.lease) == Refused(reason="expired", state=State.RUNNING)
        assert isinstance(scene.begin(rivals[1]).answer, Acquired)

    def test_a_copy_takes_over_when_the_lease_ends_and_not_before(self, scene: Scene) -> None:
        trigger = scene.trigger(lease=MINUTE)
        held = scene.acquire(trigger)
        scene.clock.at(held.expires_at - 1)
        assert scene.begin(trigger).answer == InFlight(state=State.RUNNING)
        scene.clock.at(held.expires_at)
        second = scene.acquire(trigger)
        assert second.attempt == 2
        assert second.lease.token > held.lease.token
        assert scene.record().lost_attempts == 1

    def test_a_sweep_finds_the_owner_gone_when_the_lease_ends_and_not_before(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger(lease=MINUTE))
        scene.clock.at(held.expires_at - 1)
        assert scene.sweep().lost == []
        scene.clock.at(held.expires_at)
        assert scene.sweep().lost == ["one"]

    def test_renewal_moves_the_end(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger(lease=MINUTE))
        for _ in range(5):
            scene.elapse(MINUTE - 1)
            assert accepted(scene.renew(held.lease), State.RUNNING)
            assert scene.record().expires_at == scene.now() + MINUTE
            assert scene.sweep().lost == []
        scene.elapse(MINUTE)
        assert isinstance(scene.end(held), Refused)

    def test_an_ended_lease_is_not_renewed_though_nobody_took_over(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger(lease=MINUTE))
        scene.elapse(MINUTE)
        for _ in range(2):
            assert list(scene.store.renew([held.lease])) == [Refused(reason="expired", state=State.RUNNING)]
        scene.hold("rival")

    def test_many_leases_are_renewed_in_one_call_and_answered_in_order(self, scene: Scene) -> None:
        held = [scene.acquire(scene.trigger(f"{n}", lock_key=f"lock-{n}", lease=MINUTE)) for n in range(30)]
        scene.finish(held[3])
        scene.store.revoke("7", "")
        leases = [one.lease for one in reversed(held)] + [held[0].lease]
        answers = scene.store.renew(leases)
        refused = [
            lease.key for lease, answer in zip(leases, answers, strict=True) if type(answer) is Refused
        ]
        assert refused == ["7", "3"]

    def test_renewing_nothing_is_nothing(self, scene: Scene) -> None:
        assert list(scene.store.renew([])) == []

    def test_a_begin_whose_answer_was_lost_is_repeated_with_the_same_lease(self, scene: Scene) -> None:
        trigger, owner = scene.trigger(lease=MINUTE), scene.owner()
        first = scene.acquire(trigger, owner=owner)
        scene.elapse(MINUTE // 2)
        again = scene.acquire(trigger, owner=owner)
        assert again == first
        scene.store.renew([first.lease])
        renewed = scene.acquire(trigger, owner=owner)
        assert (renewed.lease, renewed.attempt) == (first.lease, 1)
        assert renewed.expires_at > first.expires_at
        assert scene.record().attempt == 1

    def test_a_begin_repeated_after_the_lease_ended_is_another_attempt(self, scene: Scene) -> None:
        trigger, owner = scene.trigger(lease=MINUTE), scene.owner()
        first = scene.acquire(trigger, owner=owner)
        scene.elapse(MINUTE)
        again = scene.acquire(trigger, owner=owner)
        assert again.lease.token > first.lease.token
        assert isinstance(scene.end(first), Refused)

    def test_a_begin_repeated_after_its_own_end_is_answered(self, scene: Scene) -> None:
        trigger, owner = scene.trigger(), scene.owner()
        scene.finish(scene.acquire(trigger, owner=owner))
        assert isinstance(scene.begin(trigger, owner=owner).answer, Answered)

    def test_each_attempt_has_a_lease_of_its_own_message(self, scene: Scene) -> None:
        trigger = scene.trigger(lease=MINUTE)
        scene.acquire(trigger)
        scene.elapse(MINUTE)
        second = scene.acquire(scene.copy(trigger, lease=5 * MINUTE))
        assert second.expires_at == scene.now() + 5 * MINUTE

    # -- by the store's own time --------------------------------------------------------------------

    def test_on_the_stores_own_time_a_lease_ends_when_it_says(self, live: Scene) -> None:
        held = live.acquire(live.trigger(lease=400))
        seen = []

        def ended() -> bool:
            before = live.now()
            answer = live.store.verify(held.lease)
            after = live.now()
            seen.append((before, answer, after))
            return isinstance(answer, Refused)

        wait_until(ended, 10, "the lease to end", interval=0.002)
        for before, answer, after in seen:
            if isinstance(answer, Done):
                assert before < held.expires_at, "it held after its end"
            else:
                assert after >= held.expires_at, "it ended too early"

    def test_on_the_stores_own_time_a_rival_begins_when_the_lease_has_ended(self, live: Scene) -> None:
        held = live.acquire(live.trigger(lease=400))

        def taken() -> tuple[Acquired, int] | None:
            rival = live.trigger("rival", lock_key=held.lease.lock_key, keep=0)
            answer = live.begin(rival).answer
            return (answer, live.now()) if isinstance(answer, Acquired) else None

        took = wait_until(taken, 10, "the rival to begin", interval=0.002)
        assert took is not None
        rival, after = took
        assert after >= held.expires_at
        assert rival.lease.token > held.lease.token
        assert isinstance(live.end(held), Refused)

    def test_on_the_stores_own_time_renewal_keeps_a_lease(self, live: Scene) -> None:
        held = live.acquire(live.trigger(lease=2000))

        def renewed_past_its_first_end() -> bool:
            assert accepted(live.renew(held.lease), State.RUNNING)
            return live.now() > held.expires_at

        wait_until(renewed_past_its_first_end, 10)
        assert isinstance(live.end(held), Done)

    @pytest.mark.parametrize("minutes", [-10, 10])
    def test_the_clients_clock_decides_nothing(
        self, live: Scene, monkeypatch: pytest.MonkeyPatch, minutes: int
    ) -> None:
        if not self.own_time:
            pytest.skip("the time of this process is this store's time")
        held = live.acquire(live.trigger(lease=MINUTE))
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + minutes * 60)
        rival = live.connect()
        assert abs(rival.now() - int(real() * 1000)) < 5 * MINUTE
        assert isinstance(rival.begin(live.trigger("rival"), owner="r/1").answer, Answered)
        assert isinstance(rival.verify(held.lease), Done)
        assert accepted(rival.renew([held.lease])[0], State.RUNNING)
        expires_at = live.record().expires_at
        assert expires_at is not None
        assert abs(expires_at - int(real() * 1000) - MINUTE) < MINUTE // 2
