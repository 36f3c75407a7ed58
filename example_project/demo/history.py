"""What the guard's store remembers: the only place where the demo looks into it."""

from collections import Counter

from celery import Celery

from celery_guard import State
from celery_guard.worker import store_of


def read_history(app: Celery) -> Counter[State]:
    """How many executions there have been in each state: final ones ever, others at this moment."""
    history: Counter[State] = Counter()
    for (_task, state), number in store_of(app).counts().items():
        history[State(state)] += number
    return history


def unfinished(app: Celery) -> int:
    """How many executions are neither over nor given up."""
    return sum(number for state, number in read_history(app).items() if not state.final)
