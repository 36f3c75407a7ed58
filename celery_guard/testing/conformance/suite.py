"""All promises in one class, for a store's test module to inherit."""

from __future__ import annotations

from celery_guard.testing.conformance.answering import Answering
from celery_guard.testing.conformance.coalescing import Coalescing
from celery_guard.testing.conformance.contention import Contention
from celery_guard.testing.conformance.debouncing import Debouncing
from celery_guard.testing.conformance.dispatching import Dispatching
from celery_guard.testing.conformance.exclusion import Exclusion
from celery_guard.testing.conformance.fencing import Fencing
from celery_guard.testing.conformance.identity import Identity
from celery_guard.testing.conformance.leases import Leases
from celery_guard.testing.conformance.limits import Limits
from celery_guard.testing.conformance.records import Records
from celery_guard.testing.conformance.recovering import Recovering
from celery_guard.testing.conformance.replacing import Replacing
from celery_guard.testing.conformance.reserving import Reserving
from celery_guard.testing.conformance.retrying import Retrying
from celery_guard.testing.conformance.slots import Slots
from celery_guard.testing.conformance.throttling import Throttling
from celery_guard.testing.conformance.tokens import Tokens
from celery_guard.testing.conformance.transitions import Transitions
from celery_guard.testing.conformance.waiting import Waiting


class StoreConformance(
    Identity,
    Exclusion,
    Fencing,
    Leases,
    Tokens,
    Waiting,
    Coalescing,
    Debouncing,
    Replacing,
    Slots,
    Throttling,
    Limits,
    Retrying,
    Answering,
    Dispatching,
    Recovering,
    Reserving,
    Records,
    Transitions,
    Contention,
):
    """Every promise of a store. Inherit it, name the class ``Test...``, provide ``connect`` and ``wipe``."""
