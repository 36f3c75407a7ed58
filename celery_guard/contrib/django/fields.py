"""Columns and indexes that mean the same on every database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement

if TYPE_CHECKING:
    _CharField = models.CharField[Any, Any]
else:
    _CharField = models.CharField

#: The longest key, task name, owner or trigger id that the tables take.
MAX_LENGTH = 255


class KeyField(_CharField):
    """Text that is compared byte by byte: case, accents and trailing spaces count; order is by code point."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", MAX_LENGTH)
        super().__init__(*args, **kwargs)

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        """Return the column's type with an exact collation."""
        if connection.vendor == "mysql":
            # Both are binary; the ones that every version has would hold "a" and "a " for equal.
            mariadb = getattr(connection, "mysql_is_mariadb", False)
            collation = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
            return f"varchar({self.max_length}) CHARACTER SET utf8mb4 COLLATE {collation}"
        if connection.vendor == "postgresql":
            # Spelled out: for a type that starts with "varchar" Django makes a second index for LIKE.
            return f'character varying({self.max_length}) COLLATE "C"'
        return super().db_type(connection)


class FilledIndex(models.Index):
    """An index of the rows whose first column is not NULL; of all where the database has no partial indexes.

    A plain partial index is left out on MySQL and MariaDB, with a warning.
    """

    def create_sql(
        self,
        model: type[models.Model],
        schema_editor: BaseDatabaseSchemaEditor,
        using: str = "",
        **kwargs: Any,
    ) -> Statement:
        """Return the statement that makes the index."""
        condition = None
        if schema_editor.connection.features.supports_partial_indexes:
            condition = models.Q(**{f"{self.fields_orders[0][0]}__isnull": False})
        plain = models.Index(fields=self.fields, name=self.name, condition=condition)
        return plain.create_sql(model, schema_editor, using=using, **kwargs)
