"""What a step costs in round trips, counted by what a real Redis saw: begin one, finish one, renewing
one for any number of leases. No times here: `python -m bench` reports those."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from celery_guard.core.contract import Acquired, Done, Finish, Lease, Trigger
from celery_guard.core.heartbeat import Heartbeat
from celery_guard.core.options import Overlap
from celery_guard.core.session import Session
from celery_guard.core.states import State
from celery_guard.testing.servers import RedisServer

redis = pytest.importorskip("redis")

from celery_guard.stores.redis import RedisStore  # noqa: E402

pytestmark = [pytest.mark.real, pytest.mark.conformance]

#: Arguments of one EVALSHA that come before a script's own: digest, number of keys, key, call's id, time.
_RENEW_HEAD = 5
_RENEW_EACH = 3


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that a client sent, as the server saw it."""

    name: str
    words: list[str]


class Wire:
    """What clients send to a server, by MONITOR. Those inside of scripts are no round trips and left out."""

    def __init__(self, url: str) -> None:
        self._url = url

    def during(self, work: Callable[[], Any]) -> list[Command]:
        """Do ``work`` and return the commands that all clients sent in the meantime, in order."""
        with redis.Redis.from_url(self._url) as watcher, redis.Redis.from_url(self._url) as marker:
            begin, end = uuid.uuid4().hex, uuid.uuid4().hex
            marker.ping()
            with watcher.monitor() as monitor:
                marker.echo(begin)
                work()
                marker.echo(end)
                return list(self._between(monitor, begin, end))

    @staticmethod
    def _between(monitor: Any, begin: str, end: str) -> Iterator[Command]:
        started = False
        for item in monitor.listen():
            if item["client_type"] == "lua":
                continue
            name, *words = item["command"].split(" ")
            if name.upper() == "ECHO":
                if words[0] == end:
                    return
                started = started or words[0] == begin
            elif started:
                yield Command(name=name.upper(), words=words)


@pytest.fixture
def wire(redis_server: RedisServer) -> Wire:
    return Wire(redis_server.url)


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[RedisStore]:
    """A store of its own namespace, whose connection is open and whose scripts the server knows."""
    store = RedisStore(redis_server.url, namespace=uuid.uuid4().hex)
    lease = begun(store)
    store.renew([lease])
    store.verify(lease)
    store.finish(Finish(lease=lease, state=State.SUCCEEDED))
    store.sweep("nobody", ttl=1)
    yield store
    store.close()


def trigger(**facts: Any) -> Trigger:
    name = uuid.uuid4().hex
    facts = {"key": name, "lock_key": f"lock-{name}", "trigger_id": name, **facts}
    return Trigger(task="bench.task", fingerprint="f", message="m", **facts)


def begun(store: RedisStore, **facts: Any) -> Lease:
    answer = store.begin(trigger(**facts), owner=uuid.uuid4().hex).answer
    assert isinstance(answer, Acquired), answer
    return answer.lease


def names(commands: list[Command]) -> list[str]:
    return [command.name for command in commands]


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.SKIP, Overlap.QUEUE])
def test_begin_is_one_round_trip(wire: Wire, store: RedisStore, overlap: Overlap) -> None:
    assert names(wire.during(lambda: begun(store, overlap=overlap))) == ["EVALSHA"]


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.WAIT, Overlap.COALESCE, Overlap.REPLACE])
def test_begin_against_a_holder_is_one_round_trip(wire: Wire, store: RedisStore, overlap: Overlap) -> None:
    held = begun(store, overlap=overlap)
    rival = trigger(lock_key=held.lock_key, overlap=overlap)
    assert names(wire.during(lambda: store.begin(rival, owner="rival"))) == ["EVALSHA"]


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.RETRYING])
def test_finish_is_one_round_trip(wire: Wire, store: RedisStore, state: State) -> None:
    lease = begun(store)
    finish = Finish(lease=lease, state=state, result="r")
    assert names(wire.during(lambda: store.finish(finish))) == ["EVALSHA"]
    found = store.get(lease.key)
    assert found is not None
    assert found.state is state


def test_finish_that_wakes_a_waiter_is_one_round_trip(wire: Wire, store: RedisStore) -> None:
    lease = begun(store)
    store.begin(trigger(lock_key=lease.lock_key, overlap=Overlap.WAIT), owner="rival")
    answers: list[Any] = []
    commands = wire.during(lambda: answers.append(store.finish(Finish(lease=lease, state=State.SUCCEEDED))))
    assert names(commands) == ["EVALSHA"]
    assert [dispatch.why for dispatch in answers[0].dispatches] == ["released"]


@pytest.mark.parametrize("count", [1, 50, 500])
def test_one_beat_of_the_heart_renews_every_lease_in_one_round_trip(
    wire: Wire, store: RedisStore, count: int
) -> None:
    heartbeat = Heartbeat(store)
    leases = [begun(store) for _ in range(count)]
    sessions = [session_of(lease, store) for lease in leases]
    heartbeat._sessions = {id(session): session for session in sessions}  # without the thread
    commands = wire.during(heartbeat.beat)
    assert names(commands) == ["EVALSHA"]
    assert leases_in(commands[0]) == count
    assert all(session.lost is None for session in sessions)


def test_the_heartbeat_thread_renews_all_leases_together_every_time(wire: Wire, store: RedisStore) -> None:
    # The real thread, and sessions that want different intervals: still one call for all of them.
    count, beats = 40, 3
    counted = Counting(store)
    heartbeat = Heartbeat(counted)
    leases = [begun(store, lease=60_000 if n else 1_000) for n in range(count)]
    sessions = [session_of(lease, store) for lease in leases]

    def work() -> None:
        for session in sessions:
            heartbeat.add(session)
        counted.wait(beats)
        heartbeat.stop()

    renewals = wire.during(work)
    assert set(names(renewals)) == {"EVALSHA"}
    assert len(renewals) >= beats
    # The first may come while they are being added; every later one has all of them.
    assert {leases_in(command) for command in renewals[1:]} == {count}


def test_nothing_is_sent_while_nothing_is_held(wire: Wire, store: RedisStore) -> None:
    heartbeat = Heartbeat(store)
    assert wire.during(heartbeat.beat) == []
    assert wire.during(lambda: store.renew([])) == []


def test_checking_a_lease_asks_the_store_only_where_that_is_wanted(wire: Wire, store: RedisStore) -> None:
    session = session_of(begun(store), store)
    assert wire.during(session.check) == []
    assert names(wire.during(lambda: session.check(ask_store=True))) == ["EVALSHA"]


@pytest.mark.parametrize("others", [0, 100])
def test_a_sweep_is_one_round_trip(wire: Wire, redis_server: RedisServer, others: int) -> None:
    time = [1_700_000_000.0]
    store = RedisStore(redis_server.url, namespace=uuid.uuid4().hex, clock=lambda: time[0])
    leases = [begun(store, lease=1_000) for _ in range(others)]
    store.sweep("me", ttl=1)
    time[0] += 2
    answers: list[Any] = []
    commands = wire.during(lambda: answers.append(store.sweep("me", ttl=1, limit=1000)))
    assert names(commands) == ["EVALSHA"]
    assert sorted(answers[0].lost) == sorted(lease.key for lease in leases)
    store.close()


def test_a_whole_task_is_two_round_trips(wire: Wire, redis_server: RedisServer) -> None:
    celery = pytest.importorskip("celery")
    from celery_guard import Guard, GuardedTask

    app = celery.Celery("round-trips", broker="memory://", set_as_current=False)
    app.conf.update(guard_store=redis_server.url, guard_namespace=uuid.uuid4().hex)

    def body(a: int, b: int) -> int:
        return a + b

    add = app.task(name="round_trips.add", base=GuardedTask, guard=Guard(scope="{a}"))(body)
    assert add.apply((1, 2)).get() == 3  # connects, and brings the scripts
    results: list[Any] = []
    commands = wire.during(lambda: results.append(add.apply((1, 2))))
    assert results[0].get() == 3
    assert names(commands) == ["EVALSHA", "EVALSHA"]


def test_a_server_that_forgot_the_scripts_is_told_once(
    wire: Wire, store: RedisStore, redis_server: RedisServer
) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.script_flush()
    assert names(wire.during(lambda: begun(store))) == ["EVALSHA", "SCRIPT", "EVALSHA"]
    assert names(wire.during(lambda: begun(store))) == ["EVALSHA"]


class Counting:
    """A store whose renewals can be waited for."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._renewed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def renew(self, leases: Any) -> Any:
        answers = self._store.renew(leases)
        assert all(isinstance(answer, Done) for answer in answers)
        self._renewed += 1
        return answers

    def wait(self, count: int) -> None:
        from celery_guard.testing.waiting import wait_until

        wait_until(lambda: self._renewed >= count, 30, f"{count} renewals")


def session_of(lease: Lease, store: RedisStore) -> Session:
    """A session whose own deadline is far: it is lost here only where the store says so."""
    import time

    return Session(Acquired(lease=lease, attempt=1, expires_at=0), store, asked_at=time.monotonic() + 3600)


def leases_in(command: Command) -> int:
    """How many leases a renewing EVALSHA carries."""
    return (len(command.words) - _RENEW_HEAD) // _RENEW_EACH
