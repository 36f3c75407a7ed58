"""Not too fast: a job that shares its database with others takes its time."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from django.conf import settings

Page = TypeVar("Page")


def paced(pages: Iterable[Page]) -> Iterator[Page]:
    """Every page, none sooner than `COMPENSATION_PAGE_SECONDS` after the one before."""
    for page in pages:
        began = time.monotonic()
        yield page
        time.sleep(max(0.0, settings.COMPENSATION_PAGE_SECONDS - (time.monotonic() - began)))
