"""What the tests of deliveries in this process share."""

from __future__ import annotations

import pytest

from .deliveries import Fleet


@pytest.fixture
def fleet() -> Fleet:
    """An application, its broker and its store, all in this process."""
    return Fleet()
