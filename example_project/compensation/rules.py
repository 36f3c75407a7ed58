"""The rule of compensation, as a pure function: modelled on Regulation (EC) 261/2004, and simplified.

A flight that arrives three hours late, or later, is owed an amount that grows with its distance. A flight
that never arrived (cancelled or diverted) has no arrival delay in the data and is left to another rule.
"""

KM_PER_MILE = 1.609344
LATE_MINUTES = 180
BANDS = ((1500.0, 250), (3500.0, 400))  # (up to so many kilometres, euros)
BEYOND = 600  # euros for every longer flight


def compensation(arrival_delay: int | None, distance_miles: int) -> int:
    """The euros owed for one flight; 0 when nothing is owed."""
    if arrival_delay is None or arrival_delay < LATE_MINUTES:
        return 0
    kilometres = distance_miles * KM_PER_MILE
    for limit, euros in BANDS:
        if kilometres <= limit:
            return euros
    return BEYOND
