"""Where the time of one guarded task goes: a loop over the guard in this process, without pool and broker.

µs a task for each step of :func:`celery_guard.worker.execution.run_guarded`, each in a loop of its own; the
server's own time for each script; and a profile of the whole (``python -m bench.pieces`` prints that too).
"""

from __future__ import annotations

import cProfile
import io
import json
import pstats
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import redis
from celery import Celery
from kombu.serialization import dumps

from bench.places import STORE, Places, serving

_BLOCKS = 7


@dataclass(kw_only=True)
class Pieces:
    """µs a task by step: medians over blocks."""

    client: dict[str, float] = field(default_factory=dict)
    #: by script: µs of the server for one run of it
    server: dict[str, float] = field(default_factory=dict)
    profile: str = ""


def run(places: Places, *, calls: int) -> Pieces:
    """Measure a task with a scope over its argument, on the Redis store."""
    from celery_guard import Guard, GuardedTask
    from celery_guard.worker.runtime import runtime_of

    url = places.url(STORE)
    app = Celery("bench-pieces", broker="memory://", set_as_current=False)
    app.conf.update(guard_store=url, guard_namespace="pieces", task_ignore_result=True)

    def body(n: int) -> int:
        return n

    app.task(name="bench.pieces", base=GuardedTask, guard=Guard(scope="{n}"))(body)
    app.finalize()
    task = app.tasks["bench.pieces"]  # not the proxy, which costs something at every look
    found = Pieces()
    with closing(redis.Redis.from_url(url)) as client:
        for label, work in _steps(app, task):
            found.client[label] = _microseconds(work, calls)
        found.client["whole: a guarded call"] = _microseconds(lambda: _call(task), calls)
        client.config_resetstat()
        for _ in range(calls):
            _call(task)
        stats = client.info("commandstats")
        evaluated = stats["cmdstat_evalsha"]
        found.server["evalsha, mean of begin and finish"] = float(evaluated["usec_per_call"])
        for name, stat in stats.items():
            if name != "cmdstat_evalsha":
                label = f"  inside, {name.removeprefix('cmdstat_')} x{stat['calls'] / calls:.1f}"
                found.server[label] = float(stat["usec"]) / calls
        found.profile = _profile(task, calls)
    runtime_of(app).heartbeat.stop()
    runtime_of(app).store.close()
    return found


def _microseconds(work: Callable[[], Any], calls: int) -> float:
    blocks = []
    for _ in range(_BLOCKS):
        started = time.process_time()
        for _ in range(calls):
            work()
        blocks.append((time.process_time() - started) / calls * 1e6)
    return statistics.median(blocks)


def _request(task: Any, task_id: str) -> dict[str, Any]:
    """Return a request as the pool gets it from ``GuardedRequest``."""
    from celery_guard.worker.execution import DELIVERY

    content_type, encoding, body = dumps([[1], {}, {"callbacks": None, "chain": None}], serializer="json")
    absent = ("parent_id", "group", "eta", "expires", "shadow")
    headers = {
        "lang": "py",
        "task": task.name,
        "id": task_id,
        "root_id": task_id,
        "argsrepr": "(1,)",
        "kwargsrepr": "{}",
        "origin": "gen1@host",
        "retries": 0,
        "timelimit": [None, None],
        "stamps": {},
        "guard": {"v": 1, "at": 1_700_000_000_000},
        **dict.fromkeys(absent),
    }
    delivery = {
        "id": uuid.uuid4().hex,
        "body": body,
        "content_type": content_type,
        "content_encoding": encoding,
        "headers": headers,
        "properties": {"correlation_id": task_id, "reply_to": task_id, "delivery_mode": 2, "priority": 0},
        "exchange": "",
        "routing_key": "celery",
    }
    return {
        "id": task_id,
        "task": task.name,
        "args": (1,),
        "kwargs": {},
        "retries": 0,
        "is_eager": False,
        "called_directly": False,
        "guard": headers["guard"],
        "headers": None,
        "delivery_info": {DELIVERY: delivery, "exchange": "", "routing_key": "celery"},
    }


def _call(task: Any) -> None:
    task.push_request(**_request(task, str(uuid.uuid4())))
    try:
        task(1)
    finally:
        task.pop_request()


def _steps(app: Any, task: Any) -> list[tuple[str, Callable[[], Any]]]:
    from celery_guard.core import keys
    from celery_guard.core.contract import Acquired, Lease
    from celery_guard.core.session import Session
    from celery_guard.stores.redis import codec
    from celery_guard.worker import outcome
    from celery_guard.worker.envelope import Envelope
    from celery_guard.worker.execution import DELIVERY
    from celery_guard.worker.header import read
    from celery_guard.worker.identity import _function, identify, resolve
    from celery_guard.worker.runtime import runtime_of

    request = _request(task, str(uuid.uuid4()))
    delivery = request["delivery_info"][DELIVERY]
    header = read(request["guard"], "bench")
    guard = resolve(app, task, task.name, header)
    assert guard is not None
    envelope = Envelope.of_delivery(delivery)
    arguments = keys.bind(_function(task), (1,), {})
    call: dict[str, Any] = {"args": (1,), "kwargs": {}}
    facts = {"guard": guard, "header": header, "task_id": request["id"], **call}
    trigger = identify(app, task, task.name, **facts)
    lease = Lease(key="k", lock_key="l", owner="o", token=1, lease=60_000)
    acquired = Acquired(lease=lease, attempt=1, expires_at=0)
    runtime = runtime_of(app)

    def held() -> None:
        session = Session(acquired, runtime.store, asked_at=time.monotonic())
        runtime.heartbeat.add(session)
        runtime.heartbeat.remove(session)

    def empty() -> None:
        task.push_request(**_request(task, str(uuid.uuid4())))
        task.pop_request()

    return [
        ("(this loop: a request made and pushed)", empty),
        ("header.read", lambda: read(request["guard"], "bench")),
        ("identity.resolve", lambda: resolve(app, task, task.name, header)),
        ("Envelope.of_delivery", lambda: Envelope.of_delivery(delivery)),
        ("Envelope.dumps", envelope.dumps),
        ("identify, all of it", lambda: identify(app, task, task.name, **facts)),
        ("  of it keys.bind", lambda: keys.bind(_function(task), (1,), {})),
        ("  of it keys.fingerprint", lambda: keys.fingerprint(task.name, arguments)),
        (
            "  of it keys.render",
            lambda: keys.render(
                "scope", "{n}", task=task.name, arguments=arguments, scheduled_at=None, **call
            ),
        ),
        ("codec.trigger_args", lambda: codec.trigger_args(trigger)),
        ("session, heartbeat.add and remove", held),
        ("outcome.encode_result", lambda: outcome.encode_result(app, 1)),
        ("one EVALSHA round trip (now)", runtime.store.now),
    ]


def _profile(task: Any, calls: int) -> str:
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(calls):
        _call(task)
    profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(35)
    return text.getvalue()


def main() -> None:
    """Measure and print, the profile too."""
    with serving(results=False, postgres=False) as places:
        found = run(places, calls=int(sys.argv[1]) if len(sys.argv) > 1 else 500)
    print(json.dumps({"client": found.client, "server": found.server}, indent=1))
    print(found.profile)


if __name__ == "__main__":
    main()
