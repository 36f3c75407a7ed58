"""Publishing: options and origin go into the one header, a trigger is recorded before it is sent, a retry is
sent only after the store knows of it.

``Celery.send_task`` is the one way by which tasks, signatures, canvases, beat and callers by name all publish,
so that is where the guard stands.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from celery.signals import before_task_publish
from celery.utils import uuid

from ..core.contract import Trigger
from ..core.errors import OptionError
from ..core.options import Guard, check_mapping
from .execution import DELIVERY, SESSION
from .header import HEADER, Header, read
from .identity import identify, resolve
from .recording import Recording, StandsError, envelope_of
from .runtime import runtime_of
from .starting import of_options

logger = logging.getLogger("celery_guard")


@dataclass(frozen=True, kw_only=True)
class Tick:
    """The beat entry and due time (ms) that a message is published for."""

    entry: str
    due: int
    source: str = "beat"


_tick: ContextVar[Tick | None] = ContextVar("celery_guard_tick", default=None)


@contextmanager
def ticking(tick: Tick) -> Iterator[None]:
    """Everything published in the block is triggered by ``tick``."""
    token = _tick.set(tick)
    try:
        yield
    finally:
        _tick.reset(token)


_stamped = 0
_stamping = threading.Lock()


def _stamp() -> int:
    """The time of publishing in ms. No two of a process are the same, so a burst keeps its order."""
    global _stamped  # noqa: PLW0603
    with _stamping:
        _stamped = max(int(time.time() * 1000), _stamped + 1)
        return _stamped


#: What a message has to arrive for, although another trigger stands for its work: somebody counts on this very
#: id, or has links of its own. The worker answers it with the other's outcome.
_NEEDED = ("task_id", "chain", "chord", "group_id", "link", "link_error", "reply_to")


class GuardedSendTask:
    """Takes the place of an application's ``send_task``; what is not guarded goes straight on to it."""

    def __init__(self, app: Any, original: Callable[..., Any]) -> None:
        self._app = app
        self._original = original

    def __call__(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        own = options.pop("guard", None)
        options.pop(DELIVERY, None)
        headers = dict(options.get("headers") or {})
        carried = headers.pop(HEADER, None)
        task = options.get("task_type") or self._app._tasks.get(name)
        header = _header(name, own, carried)
        guard = resolve(self._app, task, name, header)
        if guard is None:
            if _tick.get() is not None:
                # Whether the task is guarded may be known to its worker alone: the due time goes along.
                options["headers"] = {**headers, HEADER: _origin(Header(soft=True), None).data()}
            return self._original(name, args, kwargs, **options)
        needed = any(options.get(name) for name in _NEEDED)  # before it gets an id that nobody knows yet
        task_id = options["task_id"] = options.get("task_id") or uuid()
        delivery = _running(task, name, task_id)
        header = _origin(header or Header(), delivery)
        trigger = None
        if delivery is None and task is not None:
            # Also the check at publish that every argument has a canonical form.
            trigger = identify(
                self._app,
                task,
                name,
                guard=guard,
                header=header,
                task_id=task_id,
                args=tuple(args or ()),
                kwargs=dict(kwargs or {}),
                **of_options(options, header.published_at),
            )
        recorded = delivery is None and trigger is not None and _recorded(guard, header)
        options["headers"] = {**headers, HEADER: replace(header, recorded=recorded or header.recorded).data()}
        if delivery is not None:
            return self._original(
                name, args, kwargs, **{**options, "producer": _Catching(self._app, delivery)}
            )
        if recorded:
            assert trigger is not None
            return self._record(
                name,
                args,
                kwargs,
                options,
                trigger,
                joins=guard.record,
                needed=needed and header.source != "backfill",
            )
        return self._original(name, args, kwargs, **options)

    def _record(
        self,
        name: str,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
        trigger: Trigger,
        *,
        joins: bool,
        needed: bool,
    ) -> Any:
        with self._app.producer_or_acquire(options.get("producer")) as producer:
            recording = Recording(producer, runtime_of(self._app), trigger, joins=joins, needed=needed)
            try:
                return self._original(name, args, kwargs, **{**options, "producer": recording})
            except StandsError as stands:
                logger.info(
                    "%s: trigger %s already stands for it; nothing published", trigger.key, stands.trigger_id
                )
                return (options.get("result_cls") or self._app.AsyncResult)(stands.trigger_id)


def _header(name: str, own: Any, carried: Any, *, where: str = "") -> Header | None:
    """Bring the two ways to give options to one message together: the option wins over the header."""
    if own is None and carried is None:
        return None
    header = read(carried, f"headers[{HEADER!r}] of task {name!r}") if carried is not None else Header()
    if own is not None:
        where = where or f"guard of apply_async for task {name!r}"
        if isinstance(own, Guard) and any(callable(getattr(own, option)) for option in ("scope", "key")):
            raise OptionError(
                where=where,
                option="key",
                message="a callable cannot travel in a message; declare it on the task",
            )
        header = replace(header, options={**header.options, **check_mapping(own, where)})
    return header


def carry_options(sender: Any = None, headers: Any = None, properties: Any = None, **_: Any) -> None:
    """Put options of a publish around the guard into the header: Celery knows no option ``guard`` and would drop
    it. That happens where a name is sent before the application is finalized, so before anything is bound.

    A signal's receiver cannot refuse, so wrong options go along and the worker fails the task with them.
    """
    own = (properties or {}).pop("guard", None)
    if own is None or headers is None:
        return
    try:
        header = _header(str(sender), own, headers.get(HEADER)) or Header()
        headers[HEADER] = replace(header, published_at=header.published_at or _stamp()).data()
    except OptionError as exc:
        logger.error("%s is sent all the same, and its worker will fail it", exc)
        headers[HEADER] = own


before_task_publish.connect(carry_options, weak=False, dispatch_uid="celery_guard.options")


def eager_headers(task: Any, own: Any, headers: dict[str, Any] | None) -> dict[str, Any] | None:
    """The headers of a call that runs here and now: options are checked as for a published one."""
    found = dict(headers or {})
    header = _header(task.name, own, found.pop(HEADER, None))
    if header is None:
        return headers
    resolve(task.app, task, task.name, header)
    return {**found, HEADER: header.data()}


def _origin(header: Header, delivery: Any) -> Header:
    if delivery is not None:  # the next try of a running execution: same execution, same place in the queue
        own: Header = delivery.header
        return replace(
            own,
            options={**own.options, **header.options},
            key=delivery.trigger.key,
            deferrals=0,
        )
    tick = _tick.get()
    if tick is not None and header.due is None:
        header = replace(header, source=tick.source, entry=tick.entry, due=tick.due)
    return replace(header, published_at=header.published_at or _stamp())


def _recorded(guard: Guard, header: Header) -> bool:
    """Whether the trigger is written to the store first. A key of the user's makes duplicates likely and a
    caller expects the handle of the execution that stands for it; a plain call costs no round trip."""
    return guard.record or header.source == "backfill" or (guard.key is not None and header.key is None)


def _running(task: Any, name: str, task_id: str) -> Any:
    """The delivery that is running this very task id in this thread, if this publish comes from its body."""
    request = getattr(task, "request", None)
    if request is None or request.id != task_id or task.name != name or request.is_eager:
        return None
    session = request.__dict__.get(SESSION)
    return session.__dict__.get("delivery") if session is not None else None


class _Catching:
    """A producer that keeps the message of the next try instead of publishing it: it goes out once the store
    knows that the execution is between two tries, or the dispatcher could bring it back too late or too soon."""

    def __init__(self, app: Any, delivery: Any) -> None:
        self._app = app
        self._delivery = delivery

    @property
    def connection(self) -> Any:
        return _NoConnection()

    def __enter__(self) -> _Catching:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def publish(self, body: Any, **options: Any) -> None:
        with self._app.producer_or_acquire() as producer:
            self._delivery.next_try = envelope_of(producer, body, options)


class _NoConnection:
    @contextmanager
    def _reraise_as_library_errors(self) -> Iterator[None]:
        yield


def publish_on_commit(task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
    """Publish once the open Django transaction is committed; the result's id is known now."""
    from ..contrib.django.commit import on_commit  # only a Django project calls this

    using = options.pop("using", None)
    task_id = options["task_id"] = options.get("task_id") or uuid()
    on_commit(lambda: task.apply_async(args, kwargs, **options), using=using)
    return task.AsyncResult(task_id)
