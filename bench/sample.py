"""A trigger as a small task makes it, and its life of two calls."""

from __future__ import annotations

import json
import time
import uuid

from celery_guard.core.contract import Acquired, Done, Finish, Lease, Store, Trigger
from celery_guard.core.options import Overlap
from celery_guard.core.states import State

TASK = "bench.stored"
#: About as long as a message of Celery's with two arguments.
_MESSAGE = json.dumps({"body": "W1sxLCAyXSwge30sIHt9XQ==" * 4, "headers": {"task": TASK, "x": "y" * 500}})
_RESULT = json.dumps({"t": "application/json", "e": "utf-8", "s": "1"})


def trigger(*, lease: int = 60_000) -> Trigger:
    """Return a fresh trigger with the default key and no exclusion: an execution and a lock of its own."""
    task_id = str(uuid.uuid4())
    key = f"{TASK}#{task_id}"
    return Trigger(
        key=key,
        task=TASK,
        lock_key=f"~{key}",
        trigger_id=task_id,
        fingerprint="f" * 64,
        message=_MESSAGE,
        order=int(time.time() * 1000),
        overlap=Overlap.ALLOW,
        lease=lease,
    )


def begun(store: Store, this: Trigger) -> Lease:
    """Begin, and return the lease."""
    answer = store.begin(this, owner=f"bench/{uuid.uuid4().hex}").answer
    assert isinstance(answer, Acquired), answer
    return answer.lease


def finished(store: Store, lease: Lease) -> None:
    """Finish with a small result."""
    done = store.finish(Finish(lease=lease, state=State.SUCCEEDED, result=_RESULT))
    assert isinstance(done, Done), done


def finished_once(store: Store) -> Lease:
    """Run one execution, and return the lease that it had."""
    lease = begun(store, trigger())
    finished(store, lease)
    return lease
