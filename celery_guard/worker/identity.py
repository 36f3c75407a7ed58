"""From a task and its message to a :class:`~celery_guard.core.contract.Trigger`: which execution, which lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from ..core import keys
from ..core.contract import GENERATION, Trigger
from ..core.options import Guard, Overlap, milliseconds, parse
from .header import Header
from .starting import start_by

#: How long records are kept for copies of their own messages, at least.
KEEP = 86_400_000
#: And for a key that names a due time: as long as a month's period may tick.
KEEP_DUE = 32 * KEEP


def declared(app: Any, task: Any, name: str) -> Guard | None:
    """Return what was declared for a task: by its class, or by the setting ``guard_tasks`` (name or pattern to
    options). ``None``: it is guarded only where a message asks for it."""
    own = getattr(task, "guard_options", None)
    if isinstance(own, Guard):
        return own
    configured = app.conf.get("guard_tasks") or {}
    for pattern, options in configured.items():
        if pattern == name or fnmatchcase(name, pattern):
            return parse(options, f"setting guard_tasks[{pattern!r}]")
    return None


def resolve(app: Any, task: Any, name: str, header: Header | None) -> Guard | None:
    """Return the options in force: declared ones with the message's on top; ``None`` where nothing is
    guarded."""
    base = declared(app, task, name)
    if header is None or (header.soft and base is None):
        return base
    return (base or Guard()).merged(header.options, f"guard options of a message for task {name!r}")


def _function(task: Any) -> Any:
    """The callable whose signature names the arguments: ``run`` as the user wrote it."""
    run = getattr(task, "_orig_run", None) or getattr(task, "run", None)
    if run is None:
        return None
    return getattr(run, "__wrapped__", run)


def _window(app: Any, guard: Guard) -> int:
    """How long a success answers for other triggers. Without a word of the user's: for a key of the user's what
    redelivery needs, an hour or the broker's visibility timeout where that is longer; else not at all."""
    if guard.unique_for is not None:
        return milliseconds(guard.unique_for) or 0
    if guard.key is None:
        return 0
    options = app.conf.broker_transport_options or {}
    try:
        visibility = int(float(options.get("visibility_timeout") or 0) * 1000)
    except (TypeError, ValueError):
        visibility = 0
    return max(3_600_000, visibility)


def _keep(app: Any, guard: Guard, header: Header) -> int:
    """How long the record answers for copies: of its message, and of a due time's other ticks. A beat that was
    away for as long as ``within`` sends those due times again that another beat may have sent in time."""
    keep = int(app.conf.get("guard_keep") or KEEP)
    if guard.key and _names_due(guard.key):
        keep = max(keep, KEEP_DUE)
    if header.due is not None and guard.within is not None:
        keep = max(keep, (milliseconds(guard.within) or 0) + 3_600_000)
    return keep


def generation(retries: Any, nesting: Any) -> int:
    """Return the place of a try among those of one message: by how often its task was replaced, then by its
    retries. What a foreign message says else counts as none."""

    def whole(value: Any) -> int:
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

    return min(whole(nesting), 1_000_000) * GENERATION + min(whole(retries), GENERATION - 1)


def _names_due(key: Any) -> bool:
    return isinstance(key, str) and "scheduled" in keys.template_fields(key)


def identify(
    app: Any,
    task: Any,
    name: str,
    *,
    guard: Guard,
    header: Header,
    task_id: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    message: str = "",
    eta: int | None = None,
    expires: int | None = None,
) -> Trigger:
    """Return the trigger; ``eta`` and ``expires`` are the message's own, in ms.

    Raises :class:`~celery_guard.core.errors.KeyArgumentError` or
    :class:`~celery_guard.core.errors.KeyTemplateError` naming what cannot be a key.
    """
    arguments = keys.bind(_function(task), args, kwargs)
    due = datetime.fromtimestamp(header.due / 1000, UTC) if header.due is not None else None
    if due is not None and app.timezone is not None:
        due = due.astimezone(app.timezone)
    shared: dict[str, Any] = {"task": name, "arguments": arguments, "args": args, "kwargs": kwargs}
    if header.key is not None:
        key = header.key
    elif guard.key is not None:
        key = f"{name}:{keys.render('key', guard.key, scheduled_at=due, **shared)}"
    elif header.entry is not None and header.due is not None:
        key = f"{name}@{header.entry}:{header.due}"
    else:
        key = f"{name}#{task_id}"
    key = keys.shorten(key)
    if guard.overlap is Overlap.ALLOW:
        lock_key = keys.shorten(f"~{key}")
    elif guard.scope is None:
        lock_key = keys.shorten(name)
    else:
        lock_key = keys.shorten(f"{name}:{keys.render('scope', guard.scope, scheduled_at=due, **shared)}")
    return Trigger(
        key=key,
        task=name,
        lock_key=lock_key,
        trigger_id=task_id,
        fingerprint=keys.fingerprint(name, arguments),
        message=message,
        source=header.source,
        order=header.published_at,
        scheduled_at=header.due,
        overlap=Overlap(guard.overlap),
        lease=milliseconds(guard.lease) or 60_000,
        max_attempts=guard.max_attempts,
        keep=_keep(app, guard, header),
        unique_for=_window(app, guard),
        once_per_key=header.due is not None and (guard.key is None or _names_due(guard.key)),
        reopen=header.source == "replay",
        wait_for=milliseconds(guard.wait_for),
        max_queue=guard.max_queue,
        hold=guard.lock_on_retry == "hold",
        entry=header.entry,
        slots=guard.slots,
        start_by=start_by(guard, header, eta=eta, expires=expires),
        max_waiting_age=milliseconds(guard.max_waiting_age),
        throttle=milliseconds(guard.throttle),
        throttle_failures=guard.throttle_failures,
        debounce=milliseconds(guard.debounce),
        max_delay=milliseconds(guard.max_delay),
        oldest=guard.arguments == "oldest",
    )
