"""The log of runs: every guarded body writes when it began and how it ended."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from django.utils import timezone

from celery_guard import GuardedTask
from example_project.compensation.models import Run


@contextmanager
def logged(task: GuardedTask, carrier: str) -> Iterator[Run]:
    """A Run that is stored before the body starts, so that one which is killed stays there without an end.

    The body ends its run with `finish`, in the transaction of its last write. A body that leaves with an
    error, a lost lease for example, ends as STOPPED.
    """
    run = Run.objects.create(
        task=task.name.rpartition(".")[2],
        carrier=carrier,
        key=task.guard.key,
        attempt=task.guard.attempt,
        token=task.guard.token,
        worker=task.request.hostname,
        pid=os.getpid(),
        started_at=timezone.now(),
    )
    try:
        yield run
    except BaseException:
        finish(run, Run.Outcome.STOPPED)
        raise


def finish(run: Run, outcome: Run.Outcome) -> int:
    """Store how the run ended; returns its number of rows, which is what the tasks return."""
    run.outcome = outcome
    run.ended_at = timezone.now()
    run.save(update_fields=("outcome", "ended_at", "rows"))
    return run.rows
