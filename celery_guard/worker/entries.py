"""The entries of the schedule that a beat of this application would run, without running one."""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Mapping
from typing import Any

from celery.beat import ScheduleEntry
from celery.utils.imports import load_extension_class_names, symbol_by_name

from ..core.errors import ConfigurationError

logger = logging.getLogger("celery_guard")


def entries_of(app: Any, scheduler: str | None = None) -> dict[str, Any]:
    """Return name -> entry: those of ``app.conf.beat_schedule``, and those that the scheduler keeps itself.

    ``scheduler`` is a class's path or alias as ``celery beat -S`` takes it; default: the setting
    ``beat_scheduler``. django-celery-beat's are read from its tables, RedBeat's from its Redis; others know what is
    configured. Raises :class:`~celery_guard.core.errors.ConfigurationError`.
    """
    found = {name: made(app, name, entry) for name, entry in (app.conf.beat_schedule or {}).items()}
    path = scheduler or app.conf.beat_scheduler
    try:
        aliases = dict(load_extension_class_names("celery.beat_schedulers"))
        kind = symbol_by_name(path, aliases=aliases)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigurationError(f"no beat scheduler {path!r} can be imported: {exc}") from exc
    if hasattr(kind, "Model"):
        found.update(_of_database(app, kind))
    elif hasattr(getattr(kind, "Entry", None), "from_key"):
        found.update(_of_redbeat(app, kind))
    return found


def made(app: Any, name: str, entry: Any) -> Any:
    """Return an entry from the mapping that a configuration has; entries stay as they are."""
    if not isinstance(entry, Mapping):
        return entry
    try:
        return ScheduleEntry(**dict(entry, name=name, app=app))
    except TypeError as exc:
        raise ConfigurationError(f"beat entry {name!r} cannot be read: {exc}") from exc


def chosen(entries: Mapping[str, Any], name: str) -> Any:
    """Return one entry. Raises :class:`~celery_guard.core.errors.ConfigurationError` with the nearest name."""
    if name in entries:
        return entries[name]
    near = difflib.get_close_matches(name, list(entries), n=1, cutoff=0.5)
    known = f"did you mean {near[0]!r}?" if near else "known: " + (", ".join(sorted(entries)[:20]) or "none")
    raise ConfigurationError(
        f"no beat entry has the name {name!r}; {known} (entries of another scheduler than the setting "
        "beat_scheduler: say which, as for celery beat -S)"
    )


def _of_database(app: Any, kind: Any) -> dict[str, Any]:
    # not the scheduler's own list: that leaves out what is not due in the next hours
    found = {}
    for model in kind.Model.objects.enabled():
        try:
            found[model.name] = kind.Entry(model, app=app)
        except ValueError as exc:
            logger.warning("periodic task %r cannot be read: %s", model.name, exc)
    return found


def _of_redbeat(app: Any, kind: Any) -> dict[str, Any]:
    redbeat = importlib.import_module("redbeat.schedulers")
    redbeat.ensure_conf(app)
    found = {}
    for key in redbeat.get_redis(app).zrange(app.redbeat_conf.schedule_key, 0, -1):
        try:
            entry = kind.Entry.from_key(key, app=app)
        except (KeyError, ValueError, TypeError) as exc:
            logger.warning("RedBeat entry %r cannot be read: %s", key, exc)
            continue
        if getattr(entry, "enabled", True):
            found[entry.name] = entry
    return found
