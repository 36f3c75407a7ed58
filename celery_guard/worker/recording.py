"""A trigger is recorded in the store before its message is published."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from ..core.contract import Dispatch, Mismatch, Reserved, Standing, Transactional, Trigger
from ..core.errors import PayloadMismatchError, StoreUnavailableError
from .envelope import Envelope
from .header import HEADER
from .runtime import Runtime
from .starting import delay_of

logger = logging.getLogger("celery_guard")

#: A recorded trigger nobody began is sent again after so long (ms), then at doubling intervals.
RESEND_AFTER = 60_000
#: And one that was recorded in a transaction: only a process that died right after commit leaves it unsent.
RESEND_COMMITTED = 5_000


class StandsError(Exception):
    """Another trigger stands for this one. Ends Celery's publishing code, caught by who called it."""

    def __init__(self, trigger_id: str) -> None:
        self.trigger_id = trigger_id


class Recording:
    """A producer that records the finished message in the store, then publishes it. Never publishes what
    another trigger stands for; takes the record back where publishing fails. Where it ``joins``, and a transaction
    is open on the store's database, the record is part of that and the message goes out after commit. A message
    that is ``needed`` goes out although another stands for it, and the worker answers it."""

    def __init__(
        self, producer: Any, runtime: Runtime, trigger: Trigger, *, joins: bool, needed: bool
    ) -> None:
        self._producer = producer
        self._runtime = runtime
        self._trigger = trigger
        self._joins = joins
        self._needed = needed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        message = envelope_of(self._producer, body, options).dumps()
        eta = delay_of(options.get("headers") or {})
        trigger = replace(self._trigger, message=message)
        store = self._runtime.store
        if self._joins and isinstance(store, Transactional) and store.in_transaction():
            return self._join(store, trigger, body, options, resend_after=RESEND_COMMITTED + eta)
        try:
            answer = store.reserve(trigger, resend_after=RESEND_AFTER + eta)
        except StoreUnavailableError as exc:
            logger.warning("%s is published unrecorded, the worker decides: %s", trigger.key, exc)
            _unrecorded(options)
            return self._producer.publish(body, **options)
        if not self._stands_alone(trigger, answer):
            _unrecorded(options)
            return self._producer.publish(body, **options)
        try:
            return self._producer.publish(body, **options)
        except BaseException:
            self._withdraw(trigger)
            raise

    def _join(
        self,
        store: Transactional,
        trigger: Trigger,
        body: Any,
        options: dict[str, Any],
        *,
        resend_after: int,
    ) -> None:
        """Record in the caller's transaction, publish once that is committed. Should this process die in
        between, or the broker be away, the dispatcher sends the recorded message."""
        message = trigger.message
        if not self._stands_alone(trigger, store.reserve_joined(trigger, resend_after=resend_after)):
            _unrecorded(options)
            message = envelope_of(self._producer, body, options).dumps()
        dispatch = Dispatch(key=trigger.key, trigger_id=trigger.trigger_id, message=message, why="committed")
        store.after_commit(lambda: self._runtime.send([dispatch]))

    def _stands_alone(self, trigger: Trigger, answer: Reserved | Standing | Mismatch) -> bool:
        """Whether the trigger has a record of its own; false where its message goes out all the same. Raises what
        ends the publishing."""
        if isinstance(answer, Mismatch):
            raise PayloadMismatchError(key=trigger.key, trigger_id=answer.trigger_id)
        if isinstance(answer, Reserved) or answer.trigger_id == trigger.trigger_id:
            return True
        if not self._needed:
            raise StandsError(answer.trigger_id)
        return False

    def _withdraw(self, trigger: Trigger) -> None:
        try:
            self._runtime.store.withdraw(trigger.key, trigger.trigger_id)
        except StoreUnavailableError as exc:
            logger.error(
                "%s could not be published, and its record not taken back (%s): it will be sent later",
                trigger.key,
                exc,
            )


def _unrecorded(options: dict[str, Any]) -> None:
    """The message says no longer that the store has it."""
    options["headers"].get(HEADER, {}).pop("rec", None)


def envelope_of(producer: Any, body: Any, options: dict[str, Any]) -> Envelope:
    headers = dict(options.get("headers") or {})
    body, content_type, content_encoding = producer._prepare(
        body, options.get("serializer"), None, None, options.get("compression"), headers
    )
    exchange = options.get("exchange") or ""
    return Envelope(
        body=body.encode() if isinstance(body, str) else bytes(body),
        content_type=content_type,
        content_encoding=content_encoding,
        headers=headers,
        exchange=getattr(exchange, "name", exchange),
        routing_key=options.get("routing_key") or "",
        properties={
            name: options.get(name)
            for name in ("priority", "reply_to", "correlation_id", "delivery_mode", "expiration")
        },
    )
