"""What every command shares: the application, and foreign text made harmless."""

from __future__ import annotations

from typing import Any

import click


def app_of(context: click.Context) -> Any:
    """Return the application that ``celery -A`` names."""
    return context.obj.app


def safe(text: str) -> str:
    """Return foreign text without control characters, so that it cannot drive a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)[:500]
