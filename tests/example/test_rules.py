"""The rule of compensation at its edges."""

import pytest

from example_project.compensation.rules import compensation


@pytest.mark.parametrize(
    ("delay", "miles", "euros"),
    [
        (None, 4000, 0),
        (-20, 4000, 0),
        (179, 4000, 0),
        (180, 4000, 600),
        (180, 100, 250),
        (180, 932, 250),  # 1,499.9 km
        (180, 933, 400),  # 1,501.5 km
        (180, 2174, 400),  # 3,498.7 km
        (180, 2175, 600),  # 3,500.3 km
        (1272, 4983, 600),
    ],
)
def test_amount_grows_with_distance_from_three_hours_on(delay: int | None, miles: int, euros: int) -> None:
    assert compensation(delay, miles) == euros
