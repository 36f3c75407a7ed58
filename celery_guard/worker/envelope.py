"""A message as it lies in the store: everything needed to publish it again, byte for byte, as JSON text."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from .header import HEADER

_PROPERTIES = ("priority", "reply_to", "correlation_id", "delivery_mode", "expiration")


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A task message: ``body`` as serialised by the publisher, its headers, and where it goes."""

    body: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    exchange: str
    routing_key: str
    properties: Mapping[str, Any] = field(default_factory=dict)

    def dumps(self) -> str:
        """Return JSON text. Raises :class:`TypeError` where a header is not data."""
        return json.dumps(
            {
                "body": base64.b64encode(self.body).decode("ascii"),
                "type": self.content_type,
                "encoding": self.content_encoding,
                "headers": dict(self.headers),
                "exchange": self.exchange,
                "key": self.routing_key,
                "properties": {k: v for k, v in self.properties.items() if v is not None},
            },
            separators=(",", ":"),
            default=_plain,
        )

    @classmethod
    def loads(cls, text: str) -> Envelope:
        """Read :meth:`dumps`' text. Raises :class:`ValueError` for anything else."""
        try:
            data = json.loads(text)
            return cls(
                body=base64.b64decode(data["body"]),
                content_type=data["type"],
                content_encoding=data["encoding"],
                headers=data["headers"],
                exchange=data["exchange"],
                routing_key=data["key"],
                properties=data["properties"],
            )
        except (KeyError, TypeError) as exc:
            raise ValueError(f"not a stored message: {exc!r}") from exc

    @classmethod
    def of_delivery(cls, delivery: Mapping[str, Any]) -> Envelope:
        """Rebuild the message from what :class:`~celery_guard.worker.request.GuardedRequest` sends along."""
        body = delivery["body"]
        return cls(
            body=body.encode() if isinstance(body, str) else bytes(body),
            content_type=delivery["content_type"],
            content_encoding=delivery["content_encoding"],
            headers=delivery["headers"],
            exchange=delivery.get("exchange") or "",
            routing_key=delivery.get("routing_key") or "",
            properties={name: delivery["properties"].get(name) for name in _PROPERTIES},
        )

    def with_header(self, guard: Mapping[str, Any], **headers: Any) -> Envelope:
        """Return the same message with another ``guard`` header (and other headers replaced)."""
        return Envelope(
            body=self.body,
            content_type=self.content_type,
            content_encoding=self.content_encoding,
            headers={**self.headers, HEADER: dict(guard), **headers},
            exchange=self.exchange,
            routing_key=self.routing_key,
            properties=self.properties,
        )

    def delayed(self, guard: Mapping[str, Any], seconds: float) -> Envelope:
        """Return the same message, to be run ``seconds`` from now."""
        eta = datetime.now(UTC) + timedelta(seconds=seconds)
        return self.with_header(guard, eta=eta.isoformat())


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} in a message header is not data")


def send(app: Any, envelope: Envelope, *, producer: Any = None) -> None:
    """Publish a stored message. Raises what kombu raises; whoever calls leaves the rest to the dispatcher."""
    declare = []
    if not envelope.exchange and envelope.routing_key in app.amqp.queues:
        declare = [app.amqp.queues[envelope.routing_key]]
    properties = {name: value for name, value in envelope.properties.items() if value is not None}
    # the broker's own time to live counts from now and would keep a late message alive; the header's
    # ``expires`` is the truth and the worker looks at it
    properties.pop("expiration", None)
    with app.producer_or_acquire(producer) as publisher:
        publisher.publish(
            envelope.body,
            content_type=envelope.content_type,
            content_encoding=envelope.content_encoding,
            headers=dict(envelope.headers),
            exchange=envelope.exchange,
            routing_key=envelope.routing_key,
            declare=declare,
            retry=False,
            **properties,
        )
