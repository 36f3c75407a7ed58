"""The parent process' view: what happens to a guarded message where the body cannot say it any more.

A pool child that dies, a hard time limit, a revoke, an expiry and a cold shutdown are seen here only. Each
becomes the right state in the store at once, instead of when the lease ends. The store's errors are logged and
never reach Celery's loop: the lease ends by itself.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import WorkerLostError
from celery.worker.request import Request, task_ready
from kombu.serialization import dumps

from ..core.contract import Done, Refused, Trigger
from ..core.states import State
from .envelope import Envelope, send
from .execution import DELIVERY
from .header import HEADER, Header, read
from .identity import generation, identify, resolve
from .runtime import runtime_of
from .starting import moment

logger = logging.getLogger("celery_guard")


class GuardedRequest(Request):
    """A request whose fate is told to the guard's store."""

    def __init__(self, message: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self._guard_id = uuid.uuid4().hex
        body, content_type, encoding = self._body, self._content_type, self._content_encoding
        if not content_type:  # an old protocol's message, already decoded and rewritten by Celery
            content_type, encoding, body = dumps(self._body, serializer="json")
        self._delivery_info[DELIVERY] = {
            "id": self._guard_id,
            "body": body,
            "content_type": content_type,
            "content_encoding": encoding,
            "headers": dict(kwargs.get("headers") or message.headers or {}),
            "properties": message.properties or {},
            "exchange": self._delivery_info.get("exchange"),
            "routing_key": self._delivery_info.get("routing_key"),
        }

    # -- identity ----------------------------------------------------------------------------------------

    def _trigger(self) -> Trigger | None:
        """This message's trigger; ``None`` where nothing guards it or no key can be made (the body's process
        says so, too, and fails the task with it)."""
        value = self._request_dict.get(HEADER)
        try:
            header = read(value, self.id) if value is not None else None
            guard = resolve(self._app, self._task, self._type, header)
            if guard is None:
                return None
            return identify(
                self._app,
                self._task,
                self._type,
                guard=guard,
                header=header or Header(),
                task_id=self.id,
                args=self._args,
                kwargs=self._kwargs,
                message=Envelope.of_delivery(self._delivery_info[DELIVERY]).dumps(),
                eta=moment(self._request_dict.get("eta")),
                expires=moment(self._request_dict.get("expires")),
            )
        except Exception as exc:  # foreign input; this is the worker's main loop, which must go on
            logger.debug("no trigger for %s: %r", self.id, exc)
            return None

    def _tell(self, what: str, write: Callable[[Any, Trigger], Done | Refused]) -> Done | Refused | None:
        trigger = self._trigger()
        if trigger is None:
            return None
        try:
            runtime = runtime_of(self._app)
            answer = write(runtime.store, trigger)
        except Exception as exc:  # also what no store should raise: Celery's loop must go on
            logger.error("%s[%s] %s, and the store could not be told: %r", self.name, self.id, what, exc)
            return None
        if isinstance(answer, Done):
            logger.info("%s[%s] %s: %s is %s", self.name, self.id, what, trigger.key, answer.state)
            if not runtime.send(answer.dispatches):
                return None
        return answer

    def _lose(self, what: str) -> Done | Refused | None:
        return self._tell(what, lambda store, trigger: store.lose(trigger.key, self._guard_id, what))

    def _end(self, what: str, state: State, *, own: bool) -> Done | Refused | None:
        retries = self._generation()
        delivery = self._guard_id if own else None
        return self._tell(
            what,
            lambda store, trigger: store.end(
                trigger, state=state, reason=what, delivery=delivery, retries=retries
            ),
        )

    def _generation(self) -> int:
        found = self._request_dict
        return generation(found.get("retries"), found.get("replaced_task_nesting"))

    # -- what happened -----------------------------------------------------------------------------------

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """A child that died: its attempt is lost now, and its stored message is on its way again, so this one
        is acknowledged. Where the store has another view (finished, taken over, never begun) the broker delivers
        again and begin decides; where it is acknowledged already, the record or its own message again."""
        if _worker_lost(exc_info) and not self._already_revoked and not self._already_cancelled:
            answer = self._lose("the worker process died")
            if isinstance(answer, Done) or (not self.task.acks_late and self._goes_on(answer)):
                task_ready(self)
                self.acknowledge()
                return None
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def _goes_on(self, answer: Refused | None) -> bool:
        """An acknowledged message whose process died, not seen as running: the record brings back one that was
        not begun, and one that has ended is asked once more for its answer."""
        if answer is not None and answer.state is not None and answer.state.final:
            try:
                send(self._app, Envelope.of_delivery(self._delivery_info[DELIVERY]))
            except Exception as exc:  # whatever a broker raises; the outcome is in the store
                logger.error("%s[%s]: its answer could not be asked for: %r", self.name, self.id, exc)
        return answer is None or answer.reason != "missing"

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """A hard time limit: failed where Celery acknowledges, lost (and tried again) where it does not."""
        if not soft:
            if _acknowledged_on_timeout(self.task):
                self._end(f"the hard time limit of {timeout} s", State.FAILED, own=True)
            else:
                self._lose(f"the hard time limit of {timeout} s")
        return super().on_timeout(soft, timeout)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> Any:
        state = State.EXPIRED if expired else State.REVOKED
        self._end(
            f"{reason} by Celery" if not expired else "it expired before it started", state, own=terminated
        )
        return super()._announce_revoked(reason, terminated, signum, expired)

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> Any:
        self._lose("cancelled by the worker's shutdown")
        return super()._announce_cancelled(*args, **kwargs)


def _acknowledged_on_timeout(task: Any) -> bool:
    """One option until Celery 5.6, then one each for failures and timeouts."""
    return bool(getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout))


def _worker_lost(exc_info: Any) -> bool:
    exc = exc_info.exception
    if isinstance(exc, ExceptionWithTraceback):
        exc = exc.exc
    return isinstance(exc, WorkerLostError | SystemExit | KeyboardInterrupt)
