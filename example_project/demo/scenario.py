"""What the demo does: the job runs, a worker is killed in the middle, a second beat appears, the job is done.

Nothing here sleeps to be right: every step waits for what the database says has happened.
"""

import datetime as dt
import re
from dataclasses import dataclass

import redis
from django.conf import settings
from django.db.models import Max, Sum
from django.utils import timezone

from example_project.compensation.models import Airline, Claim, Flight, Run
from example_project.compensation.source import airlines
from example_project.config.celery import app
from example_project.demo.history import unfinished
from example_project.demo.screen import Screen
from example_project.demo.servers import QUEUES, DemoError, Servers

WORKERS = ("first", "second")
BEATS = ("beat", "second-beat")
MANY = 10_000  # flights still to assess, which take most of a second at least
CALM = 1.0  # seconds without anything to do before the fleet counts as done


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """A run that died with its worker, and the run that took its work over."""

    interrupted: Run
    successor: Run
    seconds: float  # from the kill to the start of the successor

    @property
    def same_execution(self) -> bool:
        """True: the next attempt of that execution. False: a newer trigger was first and did its work."""
        return self.successor.key == self.interrupted.key


@dataclass(frozen=True, kw_only=True)
class Story:
    """What the demo did, for the report."""

    killed: str
    killed_at: dt.datetime
    interrupted: tuple[Run, ...]
    recoveries: tuple[Recovery, ...]
    triggers: dict[str, int]  # messages that each beat sent


def play(servers: Servers, screen: Screen) -> Story:
    """Run the whole scenario on started workers; returns once all work is done and the beats are stopped."""
    servers.start_beat(BEATS[0])
    screen.step("beat sends: every airline's flights are imported, then assessed")
    victim = await_victim(servers, screen)

    worker = victim.partition("@")[0]
    killed_at = timezone.now()
    servers.kill(worker)
    interrupted = tuple(Run.objects.filter(worker=victim, ended_at=None))
    if not interrupted:
        raise DemoError("the kill interrupted nothing: its work was done a moment before")
    what = ", ".join(f"{run.task} {run.carrier}" for run in interrupted)
    screen.step(f"SIGKILL to the whole worker '{worker}', in the middle of: {what}")
    servers.start_beat(BEATS[1])
    screen.step("a second beat starts with the same schedule")

    recoveries: dict[int, Recovery] = {}

    def recovered() -> bool:
        screen.progress(progress())
        for run in interrupted:
            if run.pk not in recoveries and (successor := successor_of(run)):
                seconds = (successor.started_at - killed_at).total_seconds()
                recoveries[run.pk] = Recovery(interrupted=run, successor=successor, seconds=seconds)
                screen.step(f"{run.task} {run.carrier} goes on, {seconds:.1f} s after the kill")
        return len(recoveries) == len(interrupted)

    servers.wait(recovered, 60, "somebody taking over the killed worker's work")

    def all_assessed() -> bool:
        screen.progress(progress())
        return Airline.objects.exclude(assessed_at=None).count() == len(airlines())

    servers.wait(all_assessed, 90, "every airline assessed")
    screen.step("every airline is imported and assessed")
    for beat in BEATS:
        servers.stop(beat)
    await_calm(servers, screen)
    triggers = {beat: triggers_sent(servers.log(beat).read_text(errors="replace")) for beat in BEATS}
    return Story(
        killed=worker,
        killed_at=killed_at,
        interrupted=interrupted,
        recoveries=tuple(recoveries.values()),
        triggers=triggers,
    )


def await_victim(servers: Servers, screen: Screen) -> str:
    """A worker that is halfway through an assessment, and in an import too unless none is running."""
    found: list[str] = []

    def ready() -> bool:
        screen.progress(progress())
        running = Run.objects.filter(ended_at=None)
        assessing = {run.worker for run in running.filter(task="assess") if halfway(run.carrier)}
        importing = {run.worker for run in running.filter(task="import_flights")}
        found.extend(assessing & importing if importing else assessing)
        return bool(found)

    servers.wait(ready, 90, "an assessment that is halfway")
    return found[0]


def halfway(carrier: str) -> bool:
    """Whether one airline has claims already, and many flights behind the newest of them."""
    newest = Claim.objects.filter(flight__airline=carrier).aggregate(newest=Max("flight"))["newest"]
    return newest is not None and Flight.objects.filter(airline=carrier, pk__gt=newest).count() >= MANY


def successor_of(interrupted: Run) -> Run | None:
    """The first later attempt for the same task and airline, which holds a higher fencing token."""
    later = Run.objects.filter(
        task=interrupted.task, carrier=interrupted.carrier, token__gt=interrupted.token
    ).order_by("token")
    return later.first()


def await_calm(servers: Servers, screen: Screen) -> None:
    """Return once no message waits in a queue and no execution is unfinished, for a moment."""
    broker = redis.Redis.from_url(settings.CELERY_BROKER_URL)
    calm_since = screen.seconds

    def calm() -> bool:
        nonlocal calm_since
        screen.progress("the beats are stopped; the worker takes what is left")
        if any(broker.llen(queue) for queue in QUEUES) or unfinished(app):
            calm_since = screen.seconds
        return screen.seconds - calm_since >= CALM

    servers.wait(calm, 60, "empty queues")
    broker.close()


def progress() -> str:
    """How far the job is, in one line."""
    flights = Flight.objects.count()
    assessed = Airline.objects.exclude(assessed_at=None).count()
    claims = Claim.objects.count()
    euros = Claim.objects.aggregate(sum=Sum("amount_eur"))["sum"] or 0
    return f"{flights:>7,} flights in, {assessed:>2} airlines assessed, {claims:>5,} claims, EUR {euros:>9,}"


def triggers_sent(log: str) -> int:
    """How many messages a beat says in its log that it sent."""
    return len(re.findall(r"Scheduler: Sending due task ", log))
