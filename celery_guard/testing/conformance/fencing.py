"""Fencing: every write to held state matches owner and token, and a lease that has not ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from celery_guard.core.contract import Acquired, Done, Finish, Finishing, Lease, Refused, Store
from celery_guard.core.options import Overlap
from celery_guard.core.states import State
from celery_guard.testing.conformance.harness import Harness
from celery_guard.testing.conformance.scene import MINUTE, Scene, accepted

Write = Callable[[Store, Lease], Done | Refused]


def _renew(store: Store, lease: Lease) -> Done | Refused:
    (answer,) = store.renew([lease])
    return answer


def _finishing(state: State) -> Write:
    return lambda store, lease: store.finish(
        Finish(lease=lease, state=state, result="stale", message="stale", reason="stale")
    )


#: Every write that an owner can make, and the question whether it may.
WRITES: dict[str, Write] = {
    "renew": _renew,
    "verify": lambda store, lease: store.verify(lease),
    "checkpoint": lambda store, lease: store.checkpoint(lease, "stale"),
} | {f"finish as {state}": _finishing(state) for state in sorted(Finishing)}


def _wrong_owner(scene: Scene, held: Acquired) -> Lease:
    return replace(held.lease, owner=held.lease.owner + "x")


def _lower_token(scene: Scene, held: Acquired) -> Lease:
    return replace(held.lease, token=held.lease.token - 1)


def _higher_token(scene: Scene, held: Acquired) -> Lease:
    return replace(held.lease, token=held.lease.token + 1)


def _expired(scene: Scene, held: Acquired) -> Lease:
    scene.elapse(MINUTE)
    return held.lease


def _next_attempt(scene: Scene, held: Acquired) -> Lease:
    scene.elapse(MINUTE)
    scene.acquire(scene.copy(scene.known("id-one"), lease=10 * MINUTE))
    return held.lease


def _rival_after_expiry(scene: Scene, held: Acquired) -> Lease:
    scene.elapse(MINUTE)
    scene.hold("rival")
    return held.lease


def _lost(scene: Scene, held: Acquired) -> Lease:
    scene.store.lose("one", held.lease.owner.split("/")[0], "its process died")
    return held.lease


def _swept(scene: Scene, held: Acquired) -> Lease:
    scene.elapse(MINUTE)
    scene.sweep()
    return held.lease


def _revoked(scene: Scene, held: Acquired) -> Lease:
    scene.store.revoke("one", "by an operator")
    return held.lease


def _replaced(scene: Scene, held: Acquired) -> Lease:
    scene.acquire(scene.trigger("rival", overlap=Overlap.REPLACE))
    return held.lease


def _ended_from_outside(scene: Scene, held: Acquired) -> Lease:
    delivery = held.lease.owner.split("/")[0]
    scene.store.end(scene.known("id-one"), state=State.REVOKED, reason="", delivery=delivery)
    return held.lease


def _next_try(scene: Scene, held: Acquired) -> Lease:
    trigger = scene.known("id-one")
    scene.finish(held, State.RETRYING, message=trigger.message, retries=1)
    scene.acquire(trigger, retries=1)
    return held.lease


def _next_execution(scene: Scene, held: Acquired) -> Lease:
    scene.finish(held)
    scene.acquire(scene.another(scene.known("id-one")))
    return held.lease


#: How an owner becomes stale.
STALE: dict[str, Callable[[Scene, Acquired], Lease]] = {
    "with another owner": _wrong_owner,
    "with a lower token": _lower_token,
    "with a higher token": _higher_token,
    "after its lease ended": _expired,
    "after the next attempt began": _next_attempt,
    "after a rival took the lock": _rival_after_expiry,
    "after it was declared lost": _lost,
    "after a sweep found it": _swept,
    "after it was revoked": _revoked,
    "after it was replaced": _replaced,
    "after its parent ended it": _ended_from_outside,
    "after its next try began": _next_try,
    "after the next execution of its key began": _next_execution,
}


class Fencing(Harness):
    """Stale owners are refused in every write, and change nothing by trying."""

    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("stale", STALE)
    def test_a_stale_owner_is_refused(self, scene: Scene, stale: str, write: str) -> None:
        held = scene.acquire(scene.trigger(lease=MINUTE))
        lease = STALE[stale](scene, held)
        before = {key: scene.store.get(key) for key in ("one", "rival")}
        answer = WRITES[write](scene.store, lease)
        if write == "finish as revoked" and stale in ("after it was revoked", "after its parent ended it"):
            # What it says is what is there already: a repetition of an accepted ending looks just so.
            assert accepted(answer, State.REVOKED)
        else:
            assert isinstance(answer, Refused), answer
            expired = stale in ("after its lease ended", "after a rival took the lock")
            assert answer.reason == ("expired" if expired else "superseded")
            found = before["one"]
            assert found is not None
            assert answer.state is found.state
        assert {key: scene.store.get(key) for key in ("one", "rival")} == before

    @pytest.mark.parametrize("write", WRITES)
    def test_a_record_that_the_store_lost_is_missing(self, scene: Scene, write: str) -> None:
        held = scene.acquire(scene.trigger())
        self.wipe()
        assert WRITES[write](scene.store, held.lease) == Refused(reason="missing")
        assert scene.store.get("one") is None

    @pytest.mark.parametrize("write", WRITES)
    def test_the_owner_is_accepted(self, scene: Scene, write: str) -> None:
        held = scene.acquire(scene.trigger(lease=MINUTE))
        scene.elapse(MINUTE - 1)
        assert isinstance(WRITES[write](scene.store, held.lease), Done)

    def test_a_stale_finish_does_not_free_the_successors_lock(self, scene: Scene) -> None:
        sleeper = scene.acquire(scene.trigger("sleeper", lease=MINUTE))
        scene.elapse(MINUTE)
        scene.hold("successor")
        assert isinstance(scene.end(sleeper), Refused)
        scene.begin(scene.trigger("third"))
        assert scene.state("third") is State.SKIPPED
        assert scene.state("sleeper") is not State.SUCCEEDED

    def test_a_swept_sleeper_does_not_free_the_successors_lock(self, scene: Scene) -> None:
        scene.acquire(scene.trigger("sleeper", lease=MINUTE))
        scene.elapse(MINUTE)
        scene.hold("successor")
        assert scene.sweep().lost == ["sleeper"]
        scene.begin(scene.trigger("third"))
        assert scene.state("third") is State.SKIPPED

    @pytest.mark.parametrize("state", sorted(Finishing))
    def test_an_accepted_finish_is_accepted_again(self, scene: Scene, state: State) -> None:
        held = scene.acquire(scene.trigger(lease=MINUTE))
        scene.finish(held, state, result="first")
        scene.elapse(2 * MINUTE)
        before = scene.record()
        assert accepted(scene.end(held, state, result="second"), state)
        assert scene.record() == before

    def test_a_repeated_finish_wakes_nobody_again(self, scene: Scene) -> None:
        held = scene.hold()
        for name in ("a", "b"):
            scene.begin(scene.trigger(name, overlap=Overlap.QUEUE))
        assert len(scene.finish(held).dispatches) == 1
        assert len(scene.finish(held).dispatches) == 0
        assert scene.state("b") is State.WAITING

    def test_a_second_ending_cannot_change_the_first(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger())
        scene.finish(held, State.SUCCEEDED)
        assert scene.end(held, State.FAILED) == Refused(reason="superseded", state=State.SUCCEEDED)
        assert scene.state() is State.SUCCEEDED

    def test_another_delivery_cannot_declare_an_owner_lost(self, scene: Scene) -> None:
        scene.acquire(scene.trigger(), owner="mine/1")
        for delivery in ("other", "min", "mine/1", "m", ""):
            assert isinstance(scene.store.lose("one", delivery, "it died"), Refused)
        assert scene.state() is State.RUNNING
        assert scene.store.lose("one", "mine", "it died").state is State.LOST

    def test_an_ending_from_outside_needs_the_owners_delivery(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.acquire(trigger, owner="mine/1")
        for delivery in (None, "other", "min", ""):
            answer = scene.store.end(trigger, state=State.REVOKED, reason="", delivery=delivery)
            assert answer == Refused(reason="superseded", state=State.RUNNING)
        assert scene.state() is State.RUNNING

    def test_another_trigger_cannot_end_an_execution(self, scene: Scene) -> None:
        trigger = scene.trigger()
        scene.store.reserve(trigger, resend_after=MINUTE)
        answer = scene.store.end(scene.another(trigger), state=State.EXPIRED, reason="")
        assert answer == Refused(reason="superseded", state=State.PENDING)

    def test_a_wildcard_in_a_delivery_means_itself(self, scene: Scene) -> None:
        scene.acquire(scene.trigger(), owner="m_ne%/1")
        for delivery in ("mine%", "m_ne", "%", "m*", "m_n_%"):
            assert isinstance(scene.store.lose("one", delivery, "it died"), Refused)
        assert isinstance(scene.store.lose("one", "m_ne%", "it died"), Done)

    def test_only_an_operators_revoke_asks_for_no_owner(self, scene: Scene) -> None:
        held = scene.acquire(scene.trigger())
        answer = scene.store.revoke("one", "by an operator")
        assert isinstance(answer, Done)
        found = scene.record()
        assert (found.state, found.reason) == (State.REVOKED, "by an operator")
        assert isinstance(scene.end(held), Refused)
        assert scene.store.revoke("one", "again") == Refused(reason="superseded", state=State.REVOKED)
        assert scene.store.revoke("nothing", "") == Refused(reason="missing")
