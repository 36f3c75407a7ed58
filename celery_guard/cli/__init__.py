"""``celery -A PROJECT guard ...``: what the guard knows, from a terminal."""

from __future__ import annotations

from .commands import guard

__all__ = ["guard"]
