"""One Celery application per family: the same settings, and the family's store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery

from bench.places import BROKER, RESULTS, STORE, Places, configure_django
from bench.variants import KINDS, VARIANTS, Variant


def store_url(family: str, places: Places) -> str | None:
    """Return the setting ``guard_store`` of a family, None for the one without."""
    if family == "bare":
        return None
    return places.url(STORE) if family == "redis" else f"django://{family}"


def make_app(
    family: str, places: Places, variants: Sequence[Variant] = VARIANTS
) -> tuple[Any, dict[str, str]]:
    """Return the family's application with its tasks, and the variants that cannot be declared with the
    reason."""
    store = store_url(family, places)
    if store is not None and store.startswith("django:"):
        configure_django(places.databases)
    app = Celery(
        f"bench-{family}",
        broker=places.url(BROKER),
        backend=places.url(RESULTS) if places.results else None,
        set_as_current=False,
    )
    app.conf.update(
        broker_connection_retry_on_startup=True,
        task_ignore_result=not places.results,
        worker_hijack_root_logger=False,
        **({"guard_store": store} if store else {}),
    )
    broken: dict[str, str] = {}
    for variant in variants:
        if variant.family != family:
            continue
        try:
            for kind, seconds in KINDS.items():
                variant.declare(app, places, variant.task_name(kind), seconds)
        except Exception as exc:  # noqa: BLE001 - a peer that does not work with this Celery is reported as such
            broken[variant.name] = f"{type(exc).__name__}: {exc}"
    app.finalize()
    return app, broken
