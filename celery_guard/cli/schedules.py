"""``guard schedules`` and ``guard backfill``: what the schedule did, and how to make up for what it did not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import GuardError
from .text import app_of, safe

if TYPE_CHECKING:
    from ..worker.backfill import Item

_SCHEDULER = click.option(
    "-S",
    "--scheduler",
    default=None,
    help="Whose entries, as for `celery beat -S`. Default: the setting beat_scheduler.",
)


class Moment(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A date and time in ISO 8601."""

    name = "ISO"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{safe(str(value))!r} is not a date or time such as 2026-03-01 or 2026-03-01T02:30+01:00",
                param,
                ctx,
            )


@click.command()
@_SCHEDULER
@click.option(
    "--recent", type=click.IntRange(0, 1000), default=10, show_default=True, help="Due times in JSON."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_context
def schedules(context: click.Context, scheduler: str | None, recent: int, as_json: bool) -> None:
    """Show each beat entry: its latest due time and what became of it, its last success, what is next.

    Times are those of the app's timezone; in JSON, milliseconds since 1970.
    """
    from ..worker.schedules import schedules as read

    app = app_of(context)
    with _told():
        found = read(app, scheduler=scheduler, recent=recent)
    for one in found:
        if as_json:
            click.echo(json.dumps(asdict(one)))
            continue
        click.echo(f"{safe(one.entry)}: {safe(one.task)}, {safe(one.schedule)}")
        state = f"{one.last_state} {safe(one.last_reason)}".strip() if one.last_state else "nothing recorded"
        click.echo(f"  last due      {_local(app, one.last_due)}  {state}")
        done = f"  for {_local(app, one.last_success_due)}" if one.last_success_due is not None else ""
        click.echo(f"  last success  {_local(app, one.last_success_at)}{done}")
        click.echo(f"  next due      {_local(app, one.next_due)}")


@click.command()
@click.argument("entry")
@click.option("--from", "start", type=Moment(), required=True, help="The first due time that counts.")
@click.option(
    "--to", "end", type=Moment(), required=True, help="Excluded. Due times of the future do not count."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--concurrency", type=click.IntRange(1, 1000), default=1, show_default=True, help="Under way at a time."
)
@_SCHEDULER
@click.option("--json", "as_json", is_flag=True, help="One JSON object a due time.")
@click.pass_context
def backfill(
    context: click.Context,
    entry: str,
    start: datetime,
    end: datetime,
    dry_run: bool,
    concurrency: int,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Run the due times of the beat entry ENTRY in a range that did not succeed.

    Workers do the work; this waits for them. Stop it with Ctrl-C and start it again as you like: what succeeded is
    not run twice, what runs is waited for. Times without a UTC offset are in the app's timezone. Exits with 1 if a due
    time failed or was not run.

    \b
    celery -A proj guard backfill nightly --from 2026-03-01 --to 2026-03-08 --dry-run
    """
    from ..worker.backfill import backfill as run
    from ..worker.entries import entries_of

    app = app_of(context)
    app.loader.import_default_modules()  # tasks that are discovered, not imported by the module of the app

    def tell(item: Item) -> None:
        if item.outcome == "waiting":
            return
        if as_json:
            click.echo(json.dumps(asdict(item)))
            return
        why = f"  ({item.state}{': ' if item.reason else ''}{safe(item.reason)})" if item.state else ""
        click.echo(f"{_local(app, item.due)}  {item.outcome}{why if item.outcome != 'succeeded' else ''}")

    with _told():
        done = run(
            app,
            entry,
            start,
            end,
            dry_run=dry_run,
            concurrency=concurrency,
            on_progress=tell,
            entries=entries_of(app, scheduler),
        )
    if dry_run:
        for item in done.items:
            tell(item)
    if not as_json:
        kinds = ("done before", "succeeded", "failed", "not run", "would run", "would wait")
        counts = [f"{done.count(kind)} {kind}" for kind in kinds if done.count(kind)]
        click.echo(
            f"{safe(done.entry)}: {len(done.items)} due times" + "".join(f", {part}" for part in counts)
        )
    if not dry_run and not done.complete:
        raise click.exceptions.Exit(1)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except GuardError as exc:
        raise click.ClickException(safe(str(exc))) from exc


def _local(app: Any, ms: int | None) -> str:
    from ..worker.slots import to_moment

    return "-" if ms is None else to_moment(ms).astimezone(app.timezone).isoformat(timespec="seconds")
