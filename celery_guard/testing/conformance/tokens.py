"""Fencing tokens of one lock key strictly increase, whatever happens in between."""

from __future__ import annotations

from functools import partial

import pytest

from celery_guard.core.contract import Acquired
from celery_guard.core.errors import StoreUnavailableError
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene
from celery_guard.testing.waiting import wait_until


def _later_than(scene: Scene, then: int) -> bool:
    return scene.now() > then


class Tokens(Harness):
    """Over release, expiry, loss, purge, a wiped store, a restart, a clock that stands or goes back."""

    def _next(self, scene: Scene, name: str, after: Acquired, **options: object) -> Acquired:
        held = scene.acquire(scene.trigger(name, **options))
        assert held.lease.token > after.lease.token
        return held

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.INTERRUPTED, State.REVOKED])
    def test_over_release(self, scene: Scene, state: State) -> None:
        held = scene.acquire(scene.trigger("0"))
        for number in range(1, 10):
            scene.finish(held, state)
            held = self._next(scene, f"{number}", held)

    def test_over_expiry(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger("0", lease=MINUTE))
        for number in range(1, 5):
            scene.elapse(MINUTE)
            held = self._next(scene, f"{number}", held, lease=MINUTE)

    def test_over_a_takeover_of_the_same_execution(self, scene: Scene) -> None:
        trigger = scene.trigger(lease=MINUTE)
        tokens = []
        for _ in range(4):
            tokens.append(scene.acquire(trigger).lease.token)
            scene.elapse(MINUTE)
        assert tokens == sorted(set(tokens))

    def test_over_a_retry(self, scene: Scene) -> None:
        trigger = scene.trigger()
        first = scene.acquire(trigger)
        scene.finish(first, State.RETRYING, message=trigger.message, retries=1)
        assert scene.acquire(trigger, retries=1).lease.token > first.lease.token

    def test_over_replacement(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger("0"))
        for number in range(1, 5):
            held = self._next(scene, f"{number}", held, overlap=Overlap.REPLACE)

    def test_over_revoke_and_loss(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger("0"))
        scene.store.revoke("0", "")
        held = scene.acquire(scene.trigger("1"), owner="mine/1")
        scene.store.lose("1", "mine", "it died")
        self._next(scene, "2", held)

    def test_over_purge(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger("0", keep=0))
        scene.finish(held)
        scene.elapse(1)
        while scene.store.purge():
            pass
        assert scene.store.get("0") is None
        self._next(scene, "1", held)

    def test_over_a_long_time(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger("0"))
        scene.finish(held)
        scene.elapse(400 * 24 * 60 * MINUTE)
        scene.sweep()
        scene.store.purge()
        self._next(scene, "1", held)

    def test_with_everybody_allowed(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger("0"))
        for number in range(1, 10):
            held = self._next(scene, f"{number}", held, overlap=Overlap.ALLOW)

    def test_within_one_millisecond(self, scene: Scene) -> None:
        triggers = [scene.trigger(f"{n}", overlap=Overlap.ALLOW) for n in range(50)]
        tokens = [scene.acquire(trigger).lease.token for trigger in triggers]
        assert tokens == sorted(set(tokens))

    def test_when_the_clock_is_set_back(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger("0"))
        for number in range(1, 5):
            scene.finish(held)
            scene.elapse(-10 * MINUTE)
            held = self._next(scene, f"{number}", held)

    def test_over_a_store_that_lost_everything(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger("0"))
        for number in range(1, 20):
            scene.finish(held)
            held = self._next(scene, f"{number}", held)
        self.wipe()
        held = self._next(scene, "after", held)
        self.wipe()
        self._next(scene, "again", held)

    def test_on_the_stores_own_time_over_a_store_that_lost_everything(self, live: Scene) -> None:
        held = live.acquire(live.trigger("0"))
        for number in range(1, 20):
            live.finish(held)
            held = self._next(live, f"{number}", held)
        for name in ("after", "again"):
            seen = live.now()
            self.wipe()
            wait_until(partial(_later_than, live, seen), 10)
            held = self._next(live, name, held)

    def test_on_the_stores_own_time_over_a_restart(self, live: Scene) -> None:
        held = live.acquire(live.trigger("0"))
        self.restart()

        def begun() -> Acquired | None:
            try:
                answer = live.begin(live.trigger("1", overlap=Overlap.ALLOW)).answer
            except StoreUnavailableError:
                return None
            assert isinstance(answer, Acquired)
            return answer

        after = wait_until(begun, 30, "the store to answer after its restart")
        assert after is not None
        assert after.lease.token > held.lease.token

    def test_a_token_is_a_whole_number_that_sql_and_json_can_hold(self, scene: Scene) -> None:
        for name in ("a", "b"):
            token = scene.acquire(scene.trigger(name, overlap=Overlap.ALLOW)).lease.token
            assert type(token) is int
            assert 0 < token < 2**53
