"""The two jobs of the schedule, each guarded per airline.

Both may be triggered too often, twice at once, or again after a crash. The guard keeps one airline's runs
from overlapping and brings a dead worker's run back; the database's constraints keep a repeated run from
writing anything twice. A run that is repeated starts again from the first page.
"""

from collections.abc import Iterator
from itertools import islice

from celery import shared_task
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from celery_guard import Guard, GuardedTask
from example_project.compensation import source
from example_project.compensation.models import Airline, Claim, Flight, Run
from example_project.compensation.pacing import paced
from example_project.compensation.rules import compensation
from example_project.compensation.runlog import finish, logged

LEASE = 5  # seconds; how long a worker that went silent is believed

# in the order of a source.FlightRow
INSERT_FLIGHT = """
    INSERT INTO compensation_flight
        (airline_id, date, number, origin, destination, distance_miles, arrival_delay)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT DO NOTHING
"""


@shared_task(
    bind=True,
    base=GuardedTask,
    guard=Guard(scope="{carrier}", key="{carrier}:{year}", unique_for="1d", lease=LEASE),
)
def import_flights(self: GuardedTask, carrier: str, year: int = source.YEAR) -> int:
    """Every flight of one carrier and year is in the database; returns how many this attempt added.

    The key says what the work *is*: an airline's year. However many triggers name it within a day, it is
    imported once, and later triggers get the first one's result.
    """
    airline, _ = Airline.objects.get_or_create(carrier=carrier, defaults={"name": source.airlines()[carrier]})
    if airline.imported_at:
        return 0
    rows = source.flights_of(carrier, year)
    with logged(self, carrier) as run:
        while page := list(islice(rows, settings.COMPENSATION_PAGE)):
            self.guard.check()
            run.rows += insert_flights(page)
        self.guard.check()
        with transaction.atomic():
            airline.imported_at = timezone.now()
            airline.save(update_fields=("imported_at",))
            return finish(run, Run.Outcome.DONE)


@shared_task(bind=True, base=GuardedTask, guard=Guard(scope="{carrier}", overlap="skip", lease=LEASE))
def assess(self: GuardedTask, carrier: str) -> int:
    """Every late flight of one carrier has its claim; returns how many claims this run added.

    A trigger that comes while the carrier is being assessed is skipped. A worker that lost its lease, because
    it was paused or cut off, stops at the next page.
    """
    airline = Airline.objects.filter(carrier=carrier).first()
    if airline is None or airline.imported_at is None or airline.assessed_at:
        return 0
    with logged(self, carrier) as run:
        for page in paced(pages(airline)):
            self.guard.check()
            run.rows += add_claims(page, token=self.guard.token)
        self.guard.check()
        with transaction.atomic():
            airline.assessed_at = timezone.now()
            airline.save(update_fields=("assessed_at",))
            return finish(run, Run.Outcome.DONE)


def insert_flights(rows: list[source.FlightRow]) -> int:
    """Every row is in the database, once; returns how many were not there before.

    One transaction, and one statement for all rows: a large file is what `bulk_create` is too slow for.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(INSERT_FLIGHT, rows)
        return int(cursor.rowcount)


def pages(airline: Airline) -> Iterator[list[Flight]]:
    """An airline's flights, page by page, in the order of their primary keys."""
    last = 0
    flights = Flight.objects.filter(airline=airline).order_by("pk")
    while page := list(flights.filter(pk__gt=last)[: settings.COMPENSATION_PAGE]):
        yield page
        last = page[-1].pk


def add_claims(flights: list[Flight], token: int | None) -> int:
    """One claim for each of the flights that is owed one and has none yet; returns how many were added.

    One transaction. Where another process adds the same claim meanwhile, the unique constraint keeps the
    first.
    """
    owed = {flight.pk: compensation(flight.arrival_delay, flight.distance_miles) for flight in flights}
    owed = {pk: amount for pk, amount in owed.items() if amount}
    with transaction.atomic():
        known = set(Claim.objects.filter(flight__in=owed).values_list("flight_id", flat=True))
        claims = [
            Claim(flight_id=pk, amount_eur=amount, token=token)
            for pk, amount in owed.items()
            if pk not in known
        ]
        Claim.objects.bulk_create(claims, ignore_conflicts=True)
    return len(claims)
