"""`python -m example_project.demo [--keep]`: see a guarded job survive a killed worker and a second beat.

It needs nothing but the `demo` extra, writes into one temporary folder only, takes about a minute, and ends
with status 0 when every number is right. With `--keep` a site stays up to look at, until Ctrl-C.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from example_project.demo.screen import Screen
from example_project.demo.servers import DemoError, Servers, free_port

if TYPE_CHECKING:
    from example_project.demo.scenario import Story

PAGE_SECONDS = "0.15"  # a large airline is then assessed for seconds, so that the kill lands in the middle


def main() -> int:
    """Parse the command line, run, clean up; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo", description="celery_guard, seen at work"
    )
    parser.add_argument("--keep", action="store_true", help="leave a site running to look at, until Ctrl-C")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the second act into a file as well")
    asked = parser.parse_args()
    keep, svg = asked.keep, asked.svg and asked.svg.resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: clean up, then end
    screen = Screen()
    try:
        with tempfile.TemporaryDirectory(prefix="celery-guard-demo-") as folder:
            return run(Path(folder), screen, keep=keep, svg=svg)
    except KeyboardInterrupt:
        screen.text("Stopped; nothing is left running.")
        return 130
    except DemoError as error:
        screen.text(f"The demo failed: {error}")
        return 1


def run(folder: Path, screen: Screen, *, keep: bool, svg: Path | None) -> int:
    """The demo in its folder; returns 0 when every number is right."""
    port = free_port()
    environment = {
        "DJANGO_SETTINGS_MODULE": "example_project.config.settings",
        "EXAMPLE_DATABASE": str(folder / "example.sqlite3"),
        "EXAMPLE_REDIS": f"redis://127.0.0.1:{port}",
        "EXAMPLE_PAGE_SECONDS": PAGE_SECONDS,
        "EXAMPLE_DEBUG": "0",
    }
    os.environ.update(environment)
    with Servers(folder, environment) as servers:
        screen.step("Valkey and two workers start, the SQLite database is created")
        servers.start_store(port)
        prepare()
        # Only now may the project be imported: its settings read the environment.
        from example_project.demo import scenario

        for worker in scenario.WORKERS:
            servers.start_worker(worker)
        for worker in scenario.WORKERS:
            servers.await_worker(worker)
        story = scenario.play(servers, screen)
        right = conclude(story, screen)
        right = second_act(servers, screen, svg) and right
        screen.text("\nEvery number is right." if right else "\nA number is WRONG.")
        if keep:
            stay(servers, screen)
    return 0 if right else 1


def prepare() -> None:
    """An empty database with every table, and a user for the admin."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from django.contrib.auth import get_user_model

    get_user_model().objects.create_superuser("demo", password="demo")


def conclude(story: "Story", screen: Screen) -> bool:
    """Print the account and the checks; returns whether every number is right."""
    from example_project.config.celery import app
    from example_project.demo import report
    from example_project.demo.expected import truth
    from example_project.demo.history import read_history

    screen.progress("counting again, straight from the raw data")
    checks = report.checks(story, truth())
    for line in report.account(story, read_history(app), screen.seconds):
        screen.text(line)
    screen.text("\nIs it right?")
    for check in checks:
        screen.text(str(check))
    return all(check.ok for check in checks)


def second_act(servers: Servers, screen: Screen, svg: Path | None) -> bool:
    """Show the policies side by side; returns whether every trigger ended as its policy says."""
    from celery_guard import Overlap, State
    from example_project.demo import policies, timeline
    from example_project.demo.report import Check

    seen = policies.play(servers, screen)
    for line in timeline.text(seen):
        screen.text(line)
    if svg is not None:
        svg.write_text(timeline.svg(seen), encoding="utf-8")
    crowded = sum(policies.at_once(seen, policy) > 1 for policy in Overlap if policy is not Overlap.ALLOW)
    parked = [one for one in seen if one.policy in (Overlap.WAIT, Overlap.QUEUE, Overlap.ALLOW)]
    newest = [one for one in seen if one.number == policies.TRIGGERS]
    checks = [
        Check(name="policies under which two bodies ran at once", seen=crowded, wanted=0),
        Check(
            name="triggers that wait, queue or allow did not run",
            seen=sum(one.state is not State.SUCCEEDED for one in parked),
            wanted=0,
        ),
        Check(
            name="newest triggers that did not run, but for skip",
            seen=sum(one.state is not State.SUCCEEDED for one in newest if one.policy is not Overlap.SKIP),
            wanted=0,
        ),
    ]
    screen.text("")
    for check in checks:
        screen.text(str(check))
    return all(check.ok for check in checks)


def stay(servers: Servers, screen: Screen) -> None:
    """Serve the site until Ctrl-C."""
    port = free_port()
    servers.start_site(port)
    screen.text(f"\nLook around: http://127.0.0.1:{port}/ (admin: user demo, password demo). Ctrl-C ends it.")
    try:
        signal.pause()
    except KeyboardInterrupt:
        screen.text("\nThe site is stopped; nothing is left running.")


if __name__ == "__main__":
    sys.exit(main())
