"""Outcomes on their way: results into the store and back, and answers for triggers whose body did not run.

Whoever waits on ``.get()`` gets an answer for every final state:

=====================================  ====================================================================
state                                  the caller of the trigger gets
=====================================  ====================================================================
succeeded                              the stored result
failed                                 the exception, rebuilt from its type and arguments
skipped, coalesced, replaced           a marker (see :func:`outcome_of`), as a successful result
lock_timeout, dead                     :class:`LockTimeoutError`, :class:`ExecutionDeadError`
expired, revoked                       Celery's state REVOKED, for the links of a chain after it, too
=====================================  ====================================================================

A marker counts in a chord. In a chain it stops the chain: the links after it have no input, they are not run,
and each answers with the same marker.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from typing import Any

from celery import states
from celery.app.task import Context
from celery.exceptions import Ignore, TaskRevokedError
from kombu.exceptions import EncodeError
from kombu.serialization import dumps, loads, prepare_accept_content

from ..core.contract import Answered
from ..core.errors import ExecutionDeadError, ExecutionFailedError, LockTimeoutError
from ..core.states import State

logger = logging.getLogger("celery_guard")

MARKER = "celery_guard"
IGNORED = "ignored by the task"
#: Larger results stay in the result backend alone.
MAX_RESULT = 256 * 1024


def marker(state: State, key: str, reason: str, by: str | None) -> dict[str, Any]:
    """Return the result that stands for a body that did not run."""
    return {MARKER: str(state), "execution": key, "reason": reason, "by": by}


def outcome_of(result: Any) -> Mapping[str, Any] | None:
    """Return the marker if a task's ``result`` is one (``{"celery_guard": "skipped", "execution": ..., "reason":
    ..., "by": ...}``), else ``None``."""
    if isinstance(result, Mapping) and set(result) == {MARKER, "execution", "reason", "by"}:
        return result
    return None


# --- results as text ------------------------------------------------------------------------------------


def encode_result(app: Any, value: Any) -> str | None:
    """Return the stored form of a result, in the application's own result serializer; ``None`` where it is too
    large. Raises :class:`kombu.exceptions.EncodeError` where the serializer cannot take it."""
    content_type, encoding, payload = dumps(value, serializer=app.conf.result_serializer)
    if isinstance(payload, str):
        stored = {"t": content_type, "e": encoding, "s": payload}
    else:
        stored = {"t": content_type, "e": encoding, "b": base64.b64encode(payload).decode("ascii")}
    text = json.dumps(stored, separators=(",", ":"))
    return text if len(text) <= MAX_RESULT else None


def encode_exception(task: Any, exc: BaseException) -> str:
    """Return the stored form of an exception: type and arguments as JSON data, never pickled."""
    try:
        data = task.backend.prepare_exception(exc, serializer="json")
        text = json.dumps({"exc": data}, default=str)
    except Exception:
        text = json.dumps(
            {"exc": {"exc_type": type(exc).__name__, "exc_message": [str(exc)], "exc_module": None}}
        )
    return text if len(text) <= MAX_RESULT else "{}"


def decode_result(app: Any, text: str) -> Any:
    """Return the value of :func:`encode_result`'s text; only content types that the application accepts."""
    stored = json.loads(text)
    payload = stored["s"] if "s" in stored else base64.b64decode(stored["b"])
    accept = prepare_accept_content(app.conf.result_accept_content or app.conf.accept_content)
    return loads(payload, stored["t"], stored["e"], accept=accept)


def _decode_exception(task: Any, text: str | None) -> BaseException | None:
    try:
        data = json.loads(text or "{}").get("exc")
        exc = task.backend.exception_to_python(data) if data else None
    except Exception:
        return None
    return exc if isinstance(exc, BaseException) else None


# --- answers --------------------------------------------------------------------------------------------


def answer(task: Any, key: str, answered: Answered) -> Any:
    """Return (or raise) for this trigger what its execution's outcome says, and let Celery go on from there
    exactly as the first delivery would have: result, links, chain and chord."""
    request = task.request
    reported = _already_reported(task, request.id)
    if answered.state is State.SUCCEEDED:
        if answered.reason == IGNORED:
            raise Ignore(IGNORED)
        if reported == states.SUCCESS:
            # Celery sends links before it stores the result: they are on their way, the chord is idempotent.
            request.callbacks = request.chain = None
        return _stored_result(task, key, answered)
    if answered.state is State.FAILED:
        if reported is not None:
            raise Ignore("its failure is already reported")
        raise _decode_exception(task, answered.result) or _error(ExecutionFailedError, key, answered)
    if answered.state in (State.DEAD, State.LOCK_TIMEOUT):
        if reported is not None:
            raise Ignore("its failure is already reported")
        kind = ExecutionDeadError if answered.state is State.DEAD else LockTimeoutError
        raise _error(kind, key, answered)
    if answered.state in (State.EXPIRED, State.REVOKED):
        if reported is None:
            # As a failure, which also answers for the links after it; nothing failed, so no errback is called.
            error = TaskRevokedError(answered.reason)
            task.backend.mark_as_failure(
                request.id, error, request=request, call_errbacks=False, state=states.REVOKED
            )
        raise Ignore(answered.reason)
    return stand_in(task, marker(answered.state, key, answered.reason, answered.by))


def _error(kind: Any, key: str, answered: Answered) -> Exception:
    error: Exception = kind(key=key, state=str(answered.state), reason=answered.reason)
    return error


def _already_reported(task: Any, task_id: str) -> str | None:
    """The result backend's final state for this trigger, if it has one."""
    if task.request.is_eager or task.ignore_result:
        return None
    try:
        state: str = task.AsyncResult(task_id).state
    except Exception:  # a backend that cannot be asked: report again, which is harmless
        return None
    return state if state in states.READY_STATES else None


def _stored_result(task: Any, key: str, answered: Answered) -> Any:
    if answered.result is not None:
        return decode_result(task.app, answered.result)
    if not task.ignore_result:
        result = task.AsyncResult(answered.trigger_id)
        if result.state == states.SUCCESS:
            return result.result
    raise ExecutionFailedError(
        key=key,
        state=str(answered.state),
        reason=f"it succeeded, but its result was too large to keep ({MAX_RESULT} bytes) and the backend has none",
    )


def stand_in(task: Any, value: dict[str, Any]) -> dict[str, Any]:
    """Let ``value`` stand for this task: nothing that builds on its result is run, everything that counts it
    still counts. Returns ``value`` for Celery to store."""
    request = task.request
    chain, request.chain, request.callbacks = request.chain, None, None
    elements = list(reversed(chain or ()))
    while elements:
        element = elements.pop(0)
        if element.get("subtask_type") == "chord":  # it completes with its body
            elements.append((element.get("kwargs") or {}).get("body") or {})
        options = dict(element.get("options") or {})
        if not options.get("task_id"):
            continue
        context = Context(options, args=(), kwargs={})
        context.id = options["task_id"]
        context.group = options.get("group_id")
        context.task = element.get("task")
        try:
            task.backend.mark_as_done(context.id, value, context)
        except Exception:  # one link's answer must not cost the others theirs
            logger.exception("could not answer for %s, a link after %s", context.id, request.id)
    return value


__all__ = [
    "EncodeError",
    "answer",
    "decode_result",
    "encode_exception",
    "encode_result",
    "marker",
    "outcome_of",
    "stand_in",
]
