"""What is particular to the Redis store: round trips, scripts, repeated calls, garbage, losses and forks."""

from __future__ import annotations

import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

redis = pytest.importorskip("redis")

from celery_guard.core.contract import (  # noqa: E402
    Acquired,
    Answered,
    Done,
    Finish,
    InFlight,
    Lease,
    Refused,
    Reserved,
    Standing,
    Trigger,
)
from celery_guard.core.errors import StoreUnavailableError, TransitionError  # noqa: E402
from celery_guard.core.options import Overlap  # noqa: E402
from celery_guard.core.states import FINAL, REOPENABLE, TRANSITIONS, State  # noqa: E402
from celery_guard.stores.redis import RedisStore  # noqa: E402
from celery_guard.stores.redis import client as client_module  # noqa: E402
from celery_guard.stores.redis.scripts import OPERATIONS, script  # noqa: E402
from celery_guard.testing.conformance.scene import SteppedClock  # noqa: E402
from celery_guard.testing.servers import RedisServer, ValkeyServer  # noqa: E402
from tests.stores.redis_proxy import RedisProxy  # noqa: E402

pytestmark = pytest.mark.real

NS = "{celery_guard}"


@pytest.fixture(scope="module", params=[RedisServer, ValkeyServer], ids=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    if reason := request.param.available():
        pytest.skip(reason)
    with request.param() as started:
        yield started


@pytest.fixture
def raw(server: RedisServer) -> Iterator[Any]:
    """A plain client of the empty server."""
    client = redis.Redis.from_url(server.url, decode_responses=True)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def store(server: RedisServer, raw: Any) -> Iterator[RedisStore]:
    made = RedisStore(server.url)
    yield made
    made.close()


@pytest.fixture
def proxy(server: RedisServer, raw: Any) -> Iterator[RedisProxy]:
    with RedisProxy(server.port) as started:
        yield started


def trigger(name: str = "one", **options: Any) -> Trigger:
    given: dict[str, Any] = {
        "key": name,
        "task": "task",
        "lock_key": "lock",
        "trigger_id": f"id-{name}",
        "fingerprint": "f",
        "message": f"message of {name}",
    }
    return Trigger(**(given | options))


def acquire(store: RedisStore, name: str = "one", *, owner: str = "delivery/1", **options: Any) -> Lease:
    answer = store.begin(trigger(name, **options), owner=owner).answer
    assert isinstance(answer, Acquired), answer
    return answer.lease


# --- scripts ------------------------------------------------------------------------------------------


def test_the_table_of_states_in_lua_is_that_of_the_core() -> None:
    text = script("begin").text
    table = re.search(r"TRANSITIONS = \{(.*?)^\}", text, re.DOTALL | re.MULTILINE)
    assert table
    rows = re.findall(r"^  (\w+) = '([ \w]*)',$", table[1], re.MULTILINE)
    assert {State(name): frozenset(map(State, row.split())) for name, row in rows} == TRANSITIONS
    finals = re.search(r"FINAL = \{(.*?)\}", text, re.DOTALL)
    reopenable = re.search(r"REOPENABLE = \{(.*?)\}", text)
    assert finals and reopenable
    assert set(map(State, re.findall(r"(\w+) = true", finals[1]))) == FINAL
    assert set(map(State, re.findall(r"(\w+) = true", reopenable[1]))) == REOPENABLE


def test_each_method_is_one_round_trip(proxy: RedisProxy) -> None:
    store = RedisStore(proxy.url)
    store.check()
    lease = acquire(store)
    leases = [lease, *(acquire(store, f"n{n}", lock_key=f"l{n}") for n in range(30))]
    calls: dict[str, Callable[[], Any]] = {
        "now": store.now,
        "reserve": lambda: store.reserve(trigger("reserved"), resend_after=1),
        "withdraw": lambda: store.withdraw("reserved", "id-reserved"),
        "begin": lambda: store.begin(trigger("two", lock_key="other"), owner="d/2"),
        "renew": lambda: store.renew(leases),
        "checkpoint": lambda: store.checkpoint(lease, "10"),
        "verify": lambda: store.verify(lease),
        "finish": lambda: store.finish(Finish(lease=lease, state=State.SUCCEEDED)),
        "lose": lambda: store.lose("two", "d", "gone"),
        "end": lambda: store.end(trigger("three"), state=State.EXPIRED, reason="late"),
        "revoke": lambda: store.revoke("two", "why"),
        "sweep": lambda: store.sweep("d", ttl=1),
        "get": lambda: store.get("one"),
        "executions": lambda: list(store.executions(limit=10)),
        "counts": store.counts,
        "purge": store.purge,
    }
    assert set(calls) == set(OPERATIONS)
    for name, call in calls.items():
        proxy.asked.clear()
        call()
        assert proxy.commands() == 1, name
        assert b"EVALSHA" in proxy.asked[0], name
    proxy.asked.clear()
    assert store.renew([]) == []
    assert proxy.commands() == 0
    store.close()


def test_scripts_that_the_server_forgot_are_loaded_again(store: RedisStore, raw: Any) -> None:
    lease = acquire(store)
    raw.script_flush()
    assert store.verify(lease) == Done(state=State.RUNNING, dispatches=[])


def test_a_move_that_the_table_does_not_have_is_a_transition_error(store: RedisStore, raw: Any) -> None:
    lease = acquire(store)
    with pytest.raises(TransitionError):
        store.finish(Finish(lease=lease, state=State.DEAD))
    with pytest.raises(TransitionError):
        store.end(trigger("new", lock_key="free"), state=State.PENDING, reason="no such way")
    with pytest.raises(TransitionError) as caught:
        store._run("finish", "one", "lock", "delivery/1", lease.token, "expired", "", "", "", 0, 0)
    assert (caught.value.facts["old"], caught.value.facts["new"]) == ("running", "expired")


def test_tokens_keep_all_their_digits(store: RedisStore) -> None:
    tokens = []
    for number in range(50):
        lease = acquire(store, f"n{number}")
        tokens.append(lease.token)
        assert len(str(lease.token)) == 16
        assert store.get(f"n{number}").token == lease.token  # type: ignore[union-attr]
        assert isinstance(store.finish(Finish(lease=lease, state=State.SUCCEEDED)), Done)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("text", ["", "plain", "\x00\r\n+:€", '{"a": 1.0000000000000001}', "\ud800 alone"])
def test_texts_come_back_as_they_were(store: RedisStore, text: str) -> None:
    lease = acquire(store, message=text, trigger_id=f"id {text}")
    assert isinstance(store.checkpoint(lease, text), Done)
    assert isinstance(store.begin(trigger(trigger_id=f"id {text}"), owner="delivery/1").answer, Acquired)
    assert store.get("one").checkpoint == text  # type: ignore[union-attr]
    store.finish(Finish(lease=lease, state=State.SUCCEEDED, result=text, reason=text))
    answer = store.begin(trigger(trigger_id=f"id {text}"), owner="delivery/2").answer
    assert isinstance(answer, Answered)
    assert (answer.result, answer.reason) == (text, text)


# --- answers that get lost ----------------------------------------------------------------------------


def test_a_begin_whose_answer_was_lost_gives_the_lease_that_was_given(proxy: RedisProxy, raw: Any) -> None:
    store = RedisStore(proxy.url)
    store.check()
    proxy.lose = 1
    lease = acquire(store)
    assert proxy.lose == 0
    record = store.get("one")
    assert record is not None
    assert (record.token, record.attempt, record.owner) == (lease.token, 1, lease.owner)
    store.close()


def test_every_other_call_is_repeated_safely(proxy: RedisProxy) -> None:
    store = RedisStore(proxy.url)
    store.check()

    def losing(call: Callable[[], Any]) -> Any:
        proxy.lose = 1
        answer = call()
        assert proxy.lose == 0
        return answer

    reserved = trigger("reserved")
    assert losing(lambda: store.reserve(reserved, resend_after=1000)) == Reserved()
    assert store.reserve(reserved, resend_after=1000) == Standing(
        trigger_id="id-reserved", state=State.PENDING
    )
    assert losing(lambda: store.withdraw("reserved", "id-reserved")) is True
    assert store.withdraw("reserved", "id-reserved") is False
    store.reserve(reserved, resend_after=1000)
    store.begin(trigger("reserved", trigger_id="id-heir", message="heir"), owner="d/9")
    assert losing(lambda: store.withdraw("reserved", "id-reserved")) is True  # passed on to who joined it
    assert store.get("reserved").trigger_id == "id-heir"  # type: ignore[union-attr]
    assert store.withdraw("reserved", "id-heir") is True
    lease = acquire(store)
    assert losing(lambda: store.renew([lease])) == [Done(state=State.RUNNING, dispatches=[])]
    assert isinstance(losing(lambda: store.checkpoint(lease, "10")), Done)
    done = losing(lambda: store.finish(Finish(lease=lease, state=State.SUCCEEDED, result="r")))
    assert done.state is State.SUCCEEDED
    acquire(store, "two", max_attempts=1)
    assert losing(lambda: store.lose("two", "delivery", "killed")).state is State.DEAD
    acquire(store, "three")
    assert losing(lambda: store.revoke("three", "why")).state is State.REVOKED
    assert losing(lambda: store.end(trigger("four"), state=State.EXPIRED, reason="")).state is State.EXPIRED
    assert store.counts() == {
        ("task", State.SUCCEEDED): 1,
        ("task", State.DEAD): 1,
        ("task", State.REVOKED): 1,
        ("task", State.EXPIRED): 1,
    }
    assert isinstance(store.revoke("three", "again"), Refused)
    store.close()


def test_lost_twice_is_unavailable(proxy: RedisProxy) -> None:
    store = RedisStore(proxy.url)
    store.check()
    proxy.lose = 2
    with pytest.raises(StoreUnavailableError) as caught:
        store.begin(trigger(), owner="delivery/1")
    assert isinstance(caught.value.__cause__, redis.exceptions.ConnectionError)
    assert caught.value.facts["operation"] == "begin"
    store.close()


def test_an_answer_to_another_call_is_never_used(store: RedisStore) -> None:
    """A soft time limit strikes between request and answer: the next to use the connection would get it."""
    lease = acquire(store)
    pool = store._scripts.client.connection_pool
    connection = pool.get_connection("EVALSHA")  # redis-py 5 wants a name
    connection.send_command("ECHO", "late")
    connection.can_read = lambda *args, **kwargs: False  # the answer is still on its way when the pool looks
    pool.release(connection)
    assert store.verify(lease) == Done(state=State.RUNNING, dispatches=[])
    assert store.verify(lease) == Done(state=State.RUNNING, dispatches=[])


def test_a_restarted_server_is_found_again() -> None:
    with RedisServer(appendonly=True) as own:
        store = RedisStore(own.url)
        lease = acquire(store)
        own.kill()
        with pytest.raises(StoreUnavailableError) as caught:
            store.verify(lease)
        assert pickle.loads(pickle.dumps(caught.value)).facts["operation"] == "verify"
        own.restart()
        assert store.verify(lease) == Done(state=State.RUNNING, dispatches=[])
        store.close()


def test_a_server_that_does_not_answer_is_unavailable_in_time() -> None:
    with RedisServer() as own:
        store = RedisStore(own.url + "?socket_timeout=0.2")
        store.check()
        own.pause()
        with pytest.raises(StoreUnavailableError):
            store.now()
        own.resume()
        assert store.now() > 0
        store.close()


def test_a_full_server_is_unavailable_and_nothing_is_half_written() -> None:
    with RedisServer() as own:
        store = RedisStore(own.url)
        lease = acquire(store)
        client = redis.Redis.from_url(own.url)
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreUnavailableError) as caught:
            store.finish(Finish(lease=lease, state=State.SUCCEEDED))
        assert "OOM" in str(caught.value) or "maxmemory" in str(caught.value)
        client.config_set("maxmemory", 0)
        assert store.get("one").state is State.RUNNING  # type: ignore[union-attr]
        assert isinstance(store.finish(Finish(lease=lease, state=State.SUCCEEDED)), Done)
        store.close()


# --- what the server loses ----------------------------------------------------------------------------


def test_a_lost_record_is_answered_as_missing(store: RedisStore, raw: Any) -> None:
    lease = acquire(store)
    raw.delete(f"{NS}:x:one")
    missing = Refused(reason="missing", state=None)
    assert list(store.renew([lease])) == [missing]
    assert store.verify(lease) == missing
    assert store.checkpoint(lease, "1") == missing
    assert store.finish(Finish(lease=lease, state=State.SUCCEEDED)) == missing
    assert store.lose("one", "delivery", "") == missing
    assert store.revoke("one", "") == missing
    assert raw.exists(f"{NS}:x:one") == 0


def test_a_lost_lock_is_noticed_by_who_runs_under_it(store: RedisStore, raw: Any) -> None:
    lease = acquire(store)
    raw.delete(f"{NS}:l:lock")
    missing = Refused(reason="missing", state=State.RUNNING)
    assert list(store.renew([lease])) == [missing]
    assert store.finish(Finish(lease=lease, state=State.SUCCEEDED)) == missing
    rival = acquire(store, "rival", owner="rival/1")
    assert rival.token > lease.token
    assert store.verify(lease) == Refused(reason="superseded", state=State.RUNNING)
    assert store.verify(rival) == Done(state=State.RUNNING, dispatches=[])


def test_indexes_mend_themselves(server: RedisServer, raw: Any) -> None:
    clock = SteppedClock()
    store = RedisStore(server.url, clock=clock)
    lease = acquire(store, lease=60_000, overlap=Overlap.QUEUE)
    store.begin(trigger("two", overlap=Overlap.QUEUE), owner="d/2")
    raw.delete(f"{NS}:due", f"{NS}:q:lock")
    assert isinstance(store.renew([lease])[0], Done)
    clock.elapse(60_000)
    assert store.sweep("d", ttl=1000).lost == ["one"]
    store.close()


def test_triggers_that_joined_a_lost_record_start_anew(server: RedisServer, raw: Any) -> None:
    clock = SteppedClock()
    store = RedisStore(server.url, clock=clock)
    acquire(store)
    store.begin(trigger(trigger_id="id-second", message="second"), owner="d/2")
    raw.delete(f"{NS}:x:one")
    clock.elapse(60_000)
    swept = store.sweep("d", ttl=1000)
    assert [(item.trigger_id, item.message) for item in swept.dispatches] == [("id-second", "second")]
    assert store.counts() == {}
    assert raw.zcard(f"{NS}:due") == 0
    store.close()


def test_tokens_grow_over_a_flush(store: RedisStore, raw: Any) -> None:
    first = acquire(store)
    raw.flushall()
    assert acquire(store, owner="d/2").token > first.token


# --- garbage ------------------------------------------------------------------------------------------


def test_only_what_is_final_expires(store: RedisStore, raw: Any) -> None:
    lease = acquire(store, keep=10_000)
    store.begin(trigger("two", overlap=Overlap.QUEUE), owner="d/2")
    assert [raw.pttl(name) for name in raw.scan_iter(f"{NS}:*")] == [-1] * len(list(raw.scan_iter()))
    store.finish(Finish(lease=lease, state=State.SUCCEEDED))
    assert 10_000 < raw.pttl(f"{NS}:x:one") <= 10_000 + 3_600_000
    assert raw.pttl(f"{NS}:x:two") == -1
    assert raw.pttl(f"{NS}:l:lock") > 86_400_000  # free until the head of the queue comes
    acquire(store, "two", overlap=Overlap.QUEUE)
    assert raw.pttl(f"{NS}:l:lock") == -1


def test_an_ending_that_owes_answers_does_not_expire(store: RedisStore, raw: Any) -> None:
    lease = acquire(store, keep=0, unique_for=1000)
    second = trigger(trigger_id="id-second", message="second", keep=0, unique_for=1000)
    store.begin(second, owner="d/2")
    store.finish(Finish(lease=lease, state=State.SUCCEEDED))
    assert raw.pttl(f"{NS}:x:one") == raw.pttl(f"{NS}:f:one") == -1
    assert isinstance(store.begin(second, owner="d/3").answer, Answered)
    assert raw.pttl(f"{NS}:x:one") > 0
    assert raw.pttl(f"{NS}:f:one") > 0


def test_a_reopened_record_does_not_expire(store: RedisStore, raw: Any) -> None:
    store.finish(Finish(lease=acquire(store), state=State.FAILED))
    assert raw.pttl(f"{NS}:x:one") > 0
    acquire(store, reopen=True)
    assert raw.pttl(f"{NS}:x:one") == -1


def test_the_store_stays_as_small_as_what_it_keeps(server: RedisServer, raw: Any) -> None:
    """Nobody sweeps or purges here: those that become final take the old ones along."""
    clock = SteppedClock()
    store = RedisStore(server.url, clock=clock)
    for number in range(300):
        lease = acquire(store, f"n{number}", lock_key="lock", keep=60_000)
        store.finish(Finish(lease=lease, state=State.SUCCEEDED))
        clock.elapse(60_000)
    assert len(list(raw.scan_iter(f"{NS}:x:*"))) <= 65  # a minute and the hour of margin, one a minute
    assert raw.zcard(f"{NS}:all") == raw.zcard(f"{NS}:kept") <= 65
    assert raw.zcard(f"{NS}:due") == raw.hlen(f"{NS}:live") == 0
    assert store.counts() == {("task", State.SUCCEEDED): 300}
    store.close()


def test_a_message_nobody_sends_again_is_not_kept(store: RedisStore, raw: Any) -> None:
    store.finish(Finish(lease=acquire(store), state=State.SUCCEEDED))
    assert raw.hget(f"{NS}:x:one", "message") is None
    store.finish(Finish(lease=acquire(store, "two"), state=State.FAILED))
    assert raw.hget(f"{NS}:x:two", "message") == "message of two"


# --- processes and threads ----------------------------------------------------------------------------


def test_a_store_used_before_fork_crosses_no_replies(store: RedisStore, monkeypatch: Any) -> None:
    crossed: list[int] = []

    class NotedError(client_module.CrossedReplyError):
        def __init__(self, *args: Any) -> None:
            crossed.append(os.getpid())
            super().__init__(*args)

    monkeypatch.setattr(client_module, "CrossedReplyError", NotedError)
    leases = {name: acquire(store, name, lock_key=name) for name in map(str, range(8))}
    stop = threading.Event()

    def busy(name: str) -> None:
        while not stop.is_set():
            found = store.get(name)
            assert found is not None and found.key == name and found.lock_key == name

    threads = [threading.Thread(target=busy, args=(name,)) for name in ("0", "1")]
    for thread in threads:
        thread.start()
    children = []
    for name, lease in leases.items():
        if (child := os.fork()) == 0:
            code = 1
            try:
                for _ in range(100):
                    found = store.get(name)
                    assert found is not None and found.lock_key == name
                    assert isinstance(store.verify(lease), Done)
                code = 2 if crossed else 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 8
    assert crossed == []


def test_a_child_does_not_close_its_parents_connection(store: RedisStore, raw: Any) -> None:
    store.now()
    before = raw.info("clients")["connected_clients"]
    if (child := os.fork()) == 0:
        code = 1
        try:
            store.close()
            store.now()
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    accepted = raw.info("stats")["total_connections_received"]
    store.now()
    assert raw.info("stats")["total_connections_received"] == accepted
    assert raw.info("clients")["connected_clients"] <= before + 1


def test_fifty_threads_one_winner(store: RedisStore) -> None:
    for number in range(5):
        gate = threading.Barrier(50)
        answers: list[Any] = []

        def run(owner: str, gate: threading.Barrier, number: int, answers: list[Any]) -> None:
            gate.wait()
            answers.append(store.begin(trigger(f"round {number}", lock_key=f"{number}"), owner=owner).answer)

        threads = [threading.Thread(target=run, args=(f"d{n}/1", gate, number, answers)) for n in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [type(answer) for answer in answers].count(Acquired) == 1
        assert [type(answer) for answer in answers].count(InFlight) == 49
