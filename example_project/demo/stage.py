"""One task a policy, for the demo's second act: each takes a moment, and looks whether it may go on."""

import time

from celery_guard import Guard, GuardedTask, Overlap
from example_project.config.celery import app

QUEUE = "stage"
BODY = 0.8  # seconds
STEP = 0.1


def work(self: GuardedTask, number: int) -> int:
    """Take `BODY` seconds; a replaced attempt learns of it at its next step and ends."""
    end = time.monotonic() + BODY
    while time.monotonic() < end:
        self.guard.check(ask_store=True)
        time.sleep(STEP)
    return number


TASKS = {
    policy: app.task(
        name=f"stage.{policy}",
        base=GuardedTask,
        bind=True,
        guard=Guard(overlap=policy, lease=10),
        queue=QUEUE,
        shared=False,
    )(work)
    for policy in Overlap
}
