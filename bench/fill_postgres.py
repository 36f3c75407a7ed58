"""Many finished executions in a store on PostgreSQL: one that was really finished, copied by the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.sample import finished_once


def fill(alias: str, store: Any, count: int) -> None:
    """Let ``store`` have ``count`` finished executions."""
    from django.db import connections

    from celery_guard.contrib.django import models

    lease = finished_once(store)
    connection = connections[alias]
    name = "s.key || '-' || n"
    own = f"'~' || {name}"
    execution = {"key": name, "current_key": name, "trigger_id": name, "lock_key": own}
    with connection.cursor() as cursor:
        for model, column, value, changed in (
            (models.Execution, "key", lease.key, execution | {"created_at": "s.created_at + n / 1000"}),
            (models.Lock, "lock_key", lease.lock_key, {"lock_key": f"'~{lease.key}-' || n"}),
        ):
            cursor.execute(_copy(model, column, changed, connection.ops.quote_name), [count - 1, value])
    with connection.cursor() as cursor:  # as autovacuum would have done by then
        for model in (models.Execution, models.Lock):
            cursor.execute(f"VACUUM ANALYZE {connection.ops.quote_name(model._meta.db_table)}")
    connection.close()


def _copy(model: Any, column: str, changed: Mapping[str, str], quote: Any) -> str:
    """Return the statement that copies the row of a ``column``'s value, with the ``changed`` expressions."""
    names = [field.column for field in model._meta.concrete_fields if field.column != "id"]
    values = ", ".join(changed.get(name) or f"s.{quote(name)}" for name in names)
    table = quote(model._meta.db_table)
    return (
        f"INSERT INTO {table} ({', '.join(map(quote, names))}) SELECT {values} "
        f"FROM {table} s, generate_series(1, %s) n WHERE s.{quote(column)} = %s"
    )
