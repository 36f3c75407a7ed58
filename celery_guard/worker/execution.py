"""One delivery in the process that runs it: begin, body, finish.

Celery acknowledges after this returns (the guard's tasks are ``acks_late``)::

    begin --> body --> finish --> [Celery: links, result] --> acknowledge
      |         |        |                  |                     |
      |         |        |                  |      a copy finds the outcome and does what is left
      |         |        a copy finds the outcome, returns it, Celery does the rest
      |         the lease ends; the dispatcher sends the stored message again
      the broker delivers again (or, where the trigger was recorded, the dispatcher)
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry

from ..core.contract import (
    Acquired,
    Answered,
    Done,
    Finish,
    InFlight,
    Joined,
    Mismatch,
    Parked,
    Refused,
    Trigger,
)
from ..core.durations import seconds
from ..core.errors import LeaseLostError, PayloadMismatchError, StoreError, StoreUnavailableError
from ..core.options import Guard
from ..core.session import Session, Unguarded
from ..core.states import State
from . import outcome
from .envelope import Envelope, send
from .header import HEADER, Header, read
from .identity import generation, identify, resolve
from .runtime import Runtime, runtime_of
from .starting import delay_of, moment
from .termination import Termination, in_pool_child

logger = logging.getLogger("celery_guard")

#: Where the running session hangs on Celery's request.
SESSION = "guard_session"
#: What GuardedRequest sends to the process that runs the body, inside ``delivery_info``.
DELIVERY = "guard_delivery"
_DEFER_MAX = 60.0

Body = Callable[..., Any]


class Delivery:
    """One delivered message on its way through the guard."""

    def __init__(self, task: Any, guard: Guard, header: Header, args: Any, kwargs: Any) -> None:
        self.task = task
        self.guard = guard
        self.header = header
        self.args = args
        self.kwargs = kwargs
        self.request = task.request
        self.runtime: Runtime = runtime_of(task.app)
        info = self.request.delivery_info or {}
        self.delivery: Mapping[str, Any] | None = info.get(DELIVERY)
        self.envelope = Envelope.of_delivery(self.delivery) if self.delivery else None
        self.trigger: Trigger = identify(
            task.app,
            task,
            task.name,
            guard=guard,
            header=header,
            task_id=self.request.id,
            args=args,
            kwargs=kwargs,
            message=self.envelope.dumps() if self.envelope else "",
            eta=moment(self.request.eta),
            expires=moment(self.request.expires),
        )
        if self.request.is_eager:  # nobody would start it once it was quiet
            self.trigger = replace(self.trigger, debounce=None)
        # Fresh for each attempt and made here, after any fork; the part before the slash lets the parent, which
        # sees this process die, name the attempt.
        self.owner = f"{self.delivery['id'] if self.delivery else 'local'}/{uuid.uuid4().hex}"
        #: the message of the next try, caught when the body publishes it, sent once the store knows of it
        self.next_try: Envelope | None = None

    def generation(self) -> int:
        """The place of this try among those of its message."""
        return generation(self.request.retries, self.request.replaced_task_nesting)

    # -- begin -------------------------------------------------------------------------------------------

    def run(self, body: Body) -> Any:
        """Run the body if this delivery may, and return what Celery is to store for it."""
        asked_at = time.monotonic()
        try:
            begun = self.runtime.store.begin(self.trigger, owner=self.owner, retries=self.generation())
        except StoreUnavailableError as exc:
            return self._store_is_down(body, exc)
        if begun.dispatches:
            self.runtime.send(begun.dispatches)
        match begun.answer:
            case Acquired() as acquired:
                return self._attempt(body, acquired, asked_at)
            case Answered() as answered:
                logger.info("%s is %s: %s", self.trigger.key, answered.state, answered.reason or "answered")
                return outcome.answer(self.task, self.trigger.key, answered)
            case InFlight(state=state):
                raise Ignore(f"a copy: {self.trigger.key} is {state} elsewhere and is kept in the store")
            case Joined(trigger_id=other):
                raise Ignore(f"joined {self.trigger.key}, started by {other}; answers when it ends")
            case Parked() if self.request.is_eager:
                return self._cannot_wait()
            case Parked(ahead=ahead):
                raise Ignore(
                    f"{self.trigger.key} waits in the store for {self.trigger.lock_key}, {ahead} ahead"
                )
            case Mismatch(trigger_id=other):
                raise PayloadMismatchError(key=self.trigger.key, trigger_id=other)

    def _cannot_wait(self) -> Any:
        """Eager mode has nobody who would send a parked message later: the trigger is revoked, now."""
        reason = "eager mode cannot wait for the lock"
        self.runtime.store.end(self.trigger, state=State.REVOKED, reason=reason)
        return outcome.stand_in(self.task, outcome.marker(State.REVOKED, self.trigger.key, reason, None))

    # -- body --------------------------------------------------------------------------------------------

    def _attempt(self, body: Body, acquired: Acquired, asked_at: float) -> Any:
        session = Session(
            acquired, self.runtime.store, asked_at=asked_at, scheduled_at=self.trigger.scheduled_at
        )
        self.request.__dict__[SESSION] = session
        session.__dict__["delivery"] = self
        termination = None
        if self.guard.terminate_after is not None and in_pool_child():
            termination = Termination(session, seconds(self.guard.terminate_after))
            session.on_lost = termination.start
        self.runtime.heartbeat.add(session)
        try:
            try:
                value = body(*self.args, **self.kwargs)
            except Retry as exc:
                self._finish_retry(session, exc)
                raise
            except Reject as exc:
                self._finish_reject(session, exc)
                raise
            except Ignore:
                self._finish_ignored(session)
                raise
            except LeaseLostError as exc:
                if session.lost is None:
                    return self._failed(session, exc)
                self._stopped(session)
            except Exception as exc:
                if session.lost is not None:
                    logger.warning("%s raised %r after its lease was lost", session.key, exc)
                    self._stopped(session)
                return self._failed(session, exc)
            except BaseException as exc:
                # the process is going down (SystemExit, a signal): lost, and counted, so that a body that
                # always exits is bounded by max_attempts. Another one is a time limit of a greenlet pool,
                # which the parent's view ends as what it is.
                if isinstance(exc, SystemExit | KeyboardInterrupt) or type(exc).__name__ == "GreenletExit":
                    self._lose(session, f"the process was told to exit ({type(exc).__name__})")
                raise
            return self._succeeded(session, value)
        finally:
            if termination is not None:
                termination.close()
            self.runtime.heartbeat.remove(session)
            self.request.__dict__.pop(SESSION, None)

    def _stopped(self, session: Session) -> NoReturn:
        reason = session.lost or "superseded"
        logger.warning("%s (token %s) stopped: its lease is lost, %s", session.key, session.token, reason)
        self._drop(self._verdict(session, reason))

    def _verdict(self, session: Session, reason: str) -> str:
        """Why the lease is lost, by the store: what this process only presumes may mean that the store lost the
        execution, and then nobody else has the work."""
        if session.settled:
            return reason
        try:
            answer = self.runtime.store.verify(session.lease)
        except StoreUnavailableError as exc:
            raise Reject(
                f"{session.key}: {reason}, and the store cannot say more: {exc}", requeue=True
            ) from exc
        return answer.reason if isinstance(answer, Refused) else reason

    def _drop(self, reason: str) -> NoReturn:
        """This attempt is over and says nothing. Where the record itself is gone, nobody else has the work: the
        message goes back to the broker."""
        if reason == "missing":
            if self.header.recorded and not self.task.acks_late and self.envelope is not None:
                send(self.task.app, self.envelope)  # acknowledged early: there is nothing to give back
                raise Ignore("the store lost the execution while it ran; its message is sent again")
            raise Reject("the store lost the execution while it ran", requeue=True)
        raise Ignore(f"the lease is lost ({reason}); another attempt has the execution")

    # -- finish ------------------------------------------------------------------------------------------

    def _succeeded(self, session: Session, value: Any) -> Any:
        if self.next_try is not None:  # retry(throw=False): the next try is the task's word, not this value
            self._finish_retry(session, None)
            return value
        try:
            result = outcome.encode_result(self.task.app, value)
        except Exception as exc:  # whatever a serializer raises; Celery would fail the task with it
            return self._failed(session, exc)
        self._finish(session, Finish(lease=session.lease, state=State.SUCCEEDED, result=result))
        return value

    def _failed(self, session: Session, exc: Exception) -> Any:
        reason = f"{type(exc).__name__}: {exc}"[:500]
        text = outcome.encode_exception(self.task, exc)
        self._finish(session, Finish(lease=session.lease, state=State.FAILED, reason=reason, result=text))
        raise exc

    def _finish_retry(self, session: Session, exc: Retry | None) -> None:
        envelope, self.next_try = self.next_try, None
        if envelope is None:
            if self.request.is_eager:  # the next try runs inside this call, as its own begin
                self._finish(
                    session,
                    Finish(lease=session.lease, state=State.RETRYING, retries=self.generation() + 1),
                )
                return
            self._finish(
                session,
                Finish(
                    lease=session.lease, state=State.FAILED, reason="Retry was raised, but no message sent"
                ),
            )
            return
        delay = delay_of(envelope.headers)
        finish = Finish(
            lease=session.lease,
            state=State.RETRYING,
            reason=str(exc)[:500] if exc else "",
            message=envelope.dumps(),
            retries=generation(
                envelope.headers.get("retries"), envelope.headers.get("replaced_task_nesting")
            ),
            delay=delay,
        )
        self._finish(session, finish)
        try:
            send(self.task.app, envelope)
        except Exception as error:  # whatever a broker raises
            logger.warning("could not send the next try of %s: %r; the dispatcher will", session.key, error)

    def _finish_reject(self, session: Session, exc: Reject) -> None:
        if exc.requeue:
            self._finish(
                session,
                Finish(lease=session.lease, state=State.INTERRUPTED, reason="the task put its message back"),
                send_own=False,
            )
        else:
            self._finish(
                session,
                Finish(lease=session.lease, state=State.FAILED, reason=f"rejected: {exc.reason}"[:500]),
            )

    def _finish_ignored(self, session: Session) -> None:
        if self.next_try is not None:  # Task.replace(): the same id goes on with another message
            self._finish_retry(session, None)
            return
        if session.lost is not None:
            self._stopped(session)
        self._finish(session, Finish(lease=session.lease, state=State.SUCCEEDED, reason=outcome.IGNORED))

    def _finish(self, session: Session, finish: Finish, *, send_own: bool = True) -> None:
        """Record how the attempt ended, or raise what stops Celery from reporting it."""
        answer = self._finish_until_lease_ends(session, finish)
        self.runtime.heartbeat.remove(session)
        if isinstance(answer, Refused):
            session.mark_lost(answer.reason)
            logger.warning(
                "%s (token %s): its end as %s is refused, %s (now %s)",
                session.key,
                session.token,
                finish.state,
                answer.reason,
                answer.state,
            )
            self._drop(answer.reason)
        assert isinstance(answer, Done)
        dispatches = [d for d in answer.dispatches if send_own or d.key != session.key]
        if dispatches:
            self.runtime.send(dispatches)

    def _finish_until_lease_ends(self, session: Session, finish: Finish) -> Done | Refused:
        pause = 0.2
        while True:
            try:
                return self.runtime.store.finish(finish)
            except StoreUnavailableError as exc:
                if session.lost is not None:
                    if self.guard.on_store_error == "run":
                        logger.error(
                            "%s: %s; its end is reported unrecorded (on_store_error='run')", session.key, exc
                        )
                        return Done(state=finish.state)
                    raise Reject(
                        f"{session.key} ended, but the store did not take it: {exc}", requeue=True
                    ) from exc
                logger.warning("%s: %s; trying again while the lease holds", session.key, exc)
                time.sleep(pause)
                pause = min(pause * 2, 2.0)

    def _lose(self, session: Session, reason: str) -> None:
        try:
            answer = self.runtime.store.lose(session.key, session.lease.owner.split("/")[0], reason)
        except StoreError as exc:
            logger.warning("%s: %s; it is lost when its lease ends", session.key, exc)
            return
        if isinstance(answer, Done):
            self.runtime.send(answer.dispatches)

    # -- no store ----------------------------------------------------------------------------------------

    def _store_is_down(self, body: Body, exc: StoreUnavailableError) -> Any:
        if self.guard.on_store_error == "run":
            logger.error("%s runs unguarded: %s (on_store_error='run')", self.trigger.key, exc)
            self.request.__dict__[SESSION] = Unguarded(self.trigger.key, self.trigger.scheduled_at)
            try:
                return body(*self.args, **self.kwargs)
            finally:
                self.request.__dict__.pop(SESSION, None)
        if self.envelope is None:
            raise exc
        pause = min(2.0**self.header.deferrals, _DEFER_MAX) * random.uniform(0.75, 1.25)
        own_eta = self.header.eta if self.header.deferrals else moment(self.request.eta)
        guard = replace(self.header, deferrals=self.header.deferrals + 1, eta=own_eta).data()
        try:
            send(self.task.app, self.envelope.delayed(guard, pause))
        except (
            Exception
        ) as error:  # the broker is down as well: keep the message where it is, but not in a hot loop
            logger.error("%s: %s, and its message could not be deferred: %r", self.trigger.key, exc, error)
            time.sleep(min(pause, 5.0))
            raise Reject(str(exc), requeue=True) from exc
        logger.error("%s is deferred for %.1f s: %s", self.trigger.key, pause, exc)
        raise Ignore(f"deferred: {exc}")


def header_of(request: Any) -> Header | None:
    """Return the checked ``guard`` header of a task's request, ``None`` where it has none."""
    value = request.__dict__.get(HEADER)
    if value is None and isinstance(request.headers, Mapping):
        value = request.headers.get(HEADER)
    if value is None:
        return None
    return read(value, f"message {request.id} of task {request.task!r}")


def run_guarded(task: Any, body: Body, args: Any, kwargs: Any) -> Any:
    """Run one delivery of ``task`` through the guard; straight through where nothing guards it."""
    header = header_of(task.request)
    guard = resolve(task.app, task, task.name, header)
    if guard is None:
        return body(*args, **kwargs)
    return Delivery(task, guard, header or Header(), args, kwargs).run(body)


__all__ = ["DELIVERY", "SESSION", "Delivery", "header_of", "run_guarded"]
