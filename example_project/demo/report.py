"""What happened, and whether every number is what it has to be."""

from collections import Counter
from dataclasses import dataclass

from django.db.models import Count, Sum

from celery_guard import State
from example_project.compensation.models import Claim, Flight, Run
from example_project.demo.expected import Truth
from example_project.demo.scenario import Recovery, Story

# Seconds. The lease and a sweep are about six; the rest is the wait for a free process on a busy machine.
# Without the guard the broker would bring the work back after its visibility timeout: an hour.
RECOVERY_WITHIN = 60.0


@dataclass(frozen=True, kw_only=True)
class Check:
    """One number that was seen, and what it has to be."""

    name: str
    seen: float
    wanted: float
    at_most: bool = False

    @property
    def ok(self) -> bool:
        return self.seen <= self.wanted if self.at_most else self.seen == self.wanted

    def __str__(self) -> str:
        seen, wanted = f"{self.seen:,.10g}", f"{self.wanted:,.10g}"
        limit = "at most" if self.at_most else "must be"
        return f"  {self.name:<50}{seen:>9}   {limit} {wanted:>9}   {'ok' if self.ok else 'WRONG'}"


def account(story: Story, history: Counter[State], seconds: float) -> list[str]:
    """The story in lines."""
    sent, executions = sum(story.triggers.values()), history.total()
    beats = ", ".join(f"{number:,} by {beat}" for beat, number in story.triggers.items())
    states = ", ".join(f"{number:,} {state}" for state, number in sorted(history.items()) if number)
    lines = [
        "",
        f"What happened in {seconds:.0f} s",
        f"  triggers    {sent:,} ({beats})",
        f"  executions  {executions:,} ({states})",
        f"  shared      {sent - executions:,} triggers meant an execution that was there already: the same",
        "              due time from the other beat, or an import that was running or done",
        f"  skips       {history[State.SKIPPED]:,} executions found their airline being assessed",
        f"  kill        worker '{story.killed}', with {len(story.interrupted)} runs in it",
    ]
    return lines + [f"  recovery    {told(recovery)}" for recovery in story.recoveries]


def told(recovery: Recovery) -> str:
    """One recovery in a line."""
    run, successor = recovery.interrupted, recovery.successor
    how = (
        f"as its attempt {successor.attempt}"
        if recovery.same_execution
        else "by a newer trigger, which was first"
    )
    worker = successor.worker.partition("@")[0]
    return f"{run.task} {run.carrier}: {recovery.seconds:.1f} s after the kill, on '{worker}', {how}"


def checks(story: Story, truth: Truth) -> list[Check]:
    """Every number of the database against the data, and every promise against the log of runs."""
    flights = Counter(dict(Flight.objects.values_list("airline").annotate(Count("pk"))))
    claims = Counter(dict(Claim.objects.values_list("flight__airline").annotate(Count("pk"))))
    euros = Counter(dict(Claim.objects.values_list("flight__airline").annotate(Sum("amount_eur"))))
    carriers = truth.flights.keys() | flights.keys()
    differing = sum((claims[c], euros[c]) != (truth.claims[c], truth.euros[c]) for c in carriers)
    duplicates = Claim.objects.count() - Claim.objects.values("flight").distinct().count()
    slowest = max((recovery.seconds for recovery in story.recoveries), default=0.0)
    return [
        Check(name="flights in the database", seen=flights.total(), wanted=truth.flights.total()),
        Check(name="claims in the database", seen=claims.total(), wanted=truth.claims.total()),
        Check(name="euros owed", seen=euros.total(), wanted=truth.euros.total()),
        Check(name="airlines whose claims or euros differ", seen=differing, wanted=0),
        Check(name="flights with more than one claim", seen=duplicates, wanted=0),
        Check(name="airlines imported or assessed more than once", seen=completed_again(), wanted=0),
        Check(name="runs that overlapped another of the same airline", seen=overlaps(story), wanted=0),
        Check(
            name="interrupted runs that nobody took over",
            seen=len(story.interrupted) - len(story.recoveries),
            wanted=0,
        ),
        Check(
            name="seconds until the slowest recovery",
            seen=round(slowest, 1),
            wanted=RECOVERY_WITHIN,
            at_most=True,
        ),
    ]


def completed_again() -> int:
    """How many imports and assessments were done by more than one run."""
    done = Run.objects.filter(outcome=Run.Outcome.DONE).values("task", "carrier").annotate(times=Count("pk"))
    return done.filter(times__gt=1).count()


def overlaps(story: Story) -> int:
    """How many runs began while the same task ran for the same airline. A kill ends what it interrupted."""
    killed = {run.pk for run in story.interrupted}
    last: dict[tuple[str, str], Run] = {}
    count = 0
    for run in Run.objects.order_by("started_at"):
        before = last.get((run.task, run.carrier))
        if before is not None:
            end = story.killed_at if before.pk in killed else before.ended_at
            count += end is None or run.started_at < end
        last[run.task, run.carrier] = run
    return count
