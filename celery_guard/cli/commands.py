"""The ``guard`` command of Celery's own command line, found through the entry point ``celery.commands``."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from typing import Any

import click
from celery import signals

from ..core.errors import GuardError
from ..core.states import State
from .text import app_of, safe

# The celery command loads this module for every subcommand, so this is also where workers and beats whose
# application sets ``guard_store`` get the guard without importing it themselves.

#: How far back a filter looks.
_LOOK_AT = 1_000_000


def _worker_starts(instance: Any = None, **kwargs: Any) -> None:
    if instance is not None and instance.app.conf.get("guard_store"):
        from ..worker.install import install

        install(instance.app)


def _beat_starts(sender: Any = None, **kwargs: Any) -> None:
    if sender is not None and sender.app.conf.get("guard_store"):
        from ..worker.beat import follow
        from ..worker.install import install

        install(sender.app)
        follow(sender.scheduler)


signals.celeryd_init.connect(_worker_starts, weak=False, dispatch_uid="celery_guard.cli.worker")
signals.beat_init.connect(_beat_starts, weak=False, dispatch_uid="celery_guard.cli.beat")


@click.group(name="guard")
def guard() -> None:
    """Look at guarded executions.

    The store is the one that the application's setting guard_store names.
    """


@guard.command()
@click.option("--task", default=None, help="Only executions of this task.")
@click.option("--state", type=click.Choice([str(s) for s in State]), default=None, help="Only this state.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_context
def executions(
    context: click.Context, task: str | None, state: str | None, limit: int, as_json: bool
) -> None:
    """List recorded executions, newest first."""
    looked_at = limit if state is None else _LOOK_AT
    found = _read(context, lambda store: store.executions(task=task, limit=looked_at))
    for item in islice((item for item in found if state is None or item.state == state), limit):
        if as_json:
            click.echo(json.dumps(asdict(item)))
        else:
            click.echo(f"{item.state:<12} {safe(item.task):<40} {safe(item.key):<60} {safe(item.reason)}")


@guard.command()
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def show(context: click.Context, key: str, as_json: bool) -> None:
    """Show the newest execution of KEY; exits with 1 where there is none."""
    item = _read(context, lambda store: store.get(key))
    if item is None:
        raise click.ClickException(f"no execution has the key {safe(key)!r}")
    data = asdict(item)
    if as_json:
        click.echo(json.dumps(data))
        return
    for name, value in data.items():
        click.echo(f"{name:<14} {safe(str(value))}")


@guard.command()
@click.option("--json", "as_json", is_flag=True, help="As a JSON list.")
@click.pass_context
def counts(context: click.Context, as_json: bool) -> None:
    """Count executions per task and state."""
    found = sorted(_read(context, lambda store: store.counts()).items())
    if as_json:
        click.echo(json.dumps([{"task": task, "state": state, "count": n} for (task, state), n in found]))
        return
    for (task, state), number in found:
        click.echo(f"{number:>9}  {state:<12} {safe(task)}")


def _read(context: click.Context, read: Any) -> Any:
    from ..worker.runtime import store_of

    try:
        return read(store_of(app_of(context)))
    except GuardError as exc:
        raise click.ClickException(str(exc)) from exc
