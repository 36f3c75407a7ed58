"""The tables of the database store.

The store writes them with its own statements on its own connections (see :mod:`.statements`); the models are
for migrations and for looking. Times are ms since the epoch by the database's clock, tokens grow with its µs.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from celery_guard.core.states import FINAL, State

from .fields import FilledIndex, KeyField

_STATES = {str(state): str(state) for state in State}
_FINAL = sorted(str(state) for state in FINAL)


class Execution(models.Model):
    """One execution. A key has one row with ``current_key`` at most, its newest; the others are history."""

    key = KeyField()
    number = models.BigIntegerField()
    #: the key again while the row is the newest of it: a unique column that history leaves empty
    current_key = KeyField(null=True)
    #: the lock key again while the row stands in the lock's queue
    queue_key = KeyField(null=True)
    task = KeyField()
    lock_key = KeyField()
    trigger_id = KeyField()
    fingerprint = models.CharField(max_length=255)
    message = models.TextField()
    source = models.CharField(max_length=255)
    overlap = models.CharField(max_length=16)
    state = models.CharField(max_length=16, choices=_STATES)
    reason = models.TextField()
    by = KeyField(null=True)
    scheduled_at = models.BigIntegerField(null=True)
    lease = models.BigIntegerField()
    max_attempts = models.BigIntegerField()
    keep = models.BigIntegerField()
    unique_for = models.BigIntegerField()
    once_per_key = models.BooleanField()
    hold = models.BooleanField()
    slots = models.BigIntegerField()
    throttle = models.BigIntegerField(null=True)
    throttle_failures = models.BooleanField()
    #: the beat entry, from a schedule
    entry = KeyField(null=True)
    deadline = models.BigIntegerField(null=True)
    start_by = models.BigIntegerField(null=True)
    not_before = models.BigIntegerField(null=True)
    put_off_since = models.BigIntegerField(null=True)
    owner = KeyField(null=True)
    token = models.BigIntegerField(null=True)
    expires_at = models.BigIntegerField(null=True)
    attempt = models.BigIntegerField()
    lost_attempts = models.BigIntegerField()
    retries = models.BigIntegerField()
    triggers = models.BigIntegerField()
    order = models.BigIntegerField()
    created_at = models.BigIntegerField()
    started_at = models.BigIntegerField(null=True)
    finished_at = models.BigIntegerField(null=True)
    keep_until = models.BigIntegerField(null=True)
    #: when the dispatcher has to look
    due_at = models.BigIntegerField(null=True)
    sends = models.BigIntegerField()
    result = models.TextField(null=True)
    checkpoint = models.TextField(null=True)
    previous = models.BigIntegerField(null=True)
    #: JSON object: trigger id -> message, empty once answered
    followers = models.TextField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["key", "number"], name="celery_guard_number"),
            models.UniqueConstraint(fields=["current_key"], name="celery_guard_current"),
            models.CheckConstraint(
                condition=Q(current_key__isnull=True) | Q(current_key=F("key")),
                name="celery_guard_current_is_key",
            ),
            models.CheckConstraint(
                condition=~Q(state="running")
                | Q(owner__isnull=False, token__isnull=False, expires_at__isnull=False),
                name="celery_guard_running_is_owned",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=_FINAL) | Q(finished_at__isnull=False, keep_until__isnull=False),
                name="celery_guard_final_has_an_end",
            ),
        ]
        indexes = [
            FilledIndex(fields=["due_at"], name="celery_guard_due"),
            FilledIndex(fields=["queue_key", "order", "number"], name="celery_guard_queue"),
            FilledIndex(fields=["keep_until"], name="celery_guard_keep"),
            models.Index(fields=["task", "state", "created_at"], name="celery_guard_task"),
            models.Index(fields=["trigger_id"], name="celery_guard_trigger"),
            FilledIndex(fields=["entry", "scheduled_at"], name="celery_guard_entry"),
        ]

    def __str__(self) -> str:
        return f"{self.key} #{self.number} {self.state}"


class Lock(models.Model):
    """A lock key: the keys of the executions that hold it, and the highest token that it gave."""

    lock_key = KeyField(primary_key=True)
    #: JSON list of execution keys, empty where it is free
    holders = models.TextField()
    token = models.BigIntegerField()
    #: until when it stays closed after the success of ``quiet_by``
    quiet_until = models.BigIntegerField()
    quiet_by = KeyField(null=True)

    def __str__(self) -> str:
        return str(self.lock_key)


class Dispatcher(models.Model):
    """Who sweeps: one row, held for a time."""

    name = KeyField(primary_key=True)
    owner = KeyField(null=True)
    expires_at = models.BigIntegerField()

    def __str__(self) -> str:
        return str(self.name)


class Counter(models.Model):
    """How many final executions of a task and state no row counts any more: purged, or opened again."""

    task = KeyField()
    state = models.CharField(max_length=16)
    count = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["task", "state"], name="celery_guard_counter_once")]

    def __str__(self) -> str:
        return f"{self.task} {self.state}: {self.count}"
