"""``replace`` with ``terminate_after``: a body that does not listen ends with its process, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_guard.core.states import State
from celery_guard.testing.processes import wait_until

from .lab import Lab

pytestmark = pytest.mark.real

DEAF = """
@task(overlap="replace", scope="{k}", lease=3, terminate_after=1)
def deaf(self, k, n, seconds):
    log("start", n=n, pid=os.getpid())
    end = time.monotonic() + seconds
    while time.monotonic() < end: time.sleep(0.1)
    log("end", n=n)
    return n
@app.task
def alive(pid):
    try: os.kill(pid, 0)
    except ProcessLookupError: return False
    return True
"""


def test_a_deaf_body_is_ended_after_its_grace(lab: Callable[..., Lab]) -> None:
    it = lab()
    it.app_text(DEAF)
    it.worker("A", concurrency=2)
    it.run("open('old', 'w').write(deaf.delay('x', 1, 600).id)")
    wait_until(lambda: it.bodies.count("start", n=1) == 1, 20, "the old body runs")
    pid = it.starts()[0]["pid"]
    it.run("open('new', 'w').write(deaf.delay('x', 2, 8).id)")
    assert it.run("print(app.AsyncResult(open('new').read()).get(timeout=30))") == "2"
    assert it.run(f"print(alive.delay({pid}).get(timeout=20))") == "False"
    answer = it.run("print(app.AsyncResult(open('old').read()).get(timeout=20))")
    assert "replaced" in answer
    assert sorted(it.states("deaf"), key=str) == [State.REPLACED, State.SUCCEEDED]
    assert it.bodies.count("end", n=1) == 0 and it.bodies.count("start", n=1) == 1
