"""Executions in the admin, to look at."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from .models import Execution

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Execution]
else:
    _ModelAdmin = admin.ModelAdmin


@admin.register(Execution)
class ExecutionAdmin(_ModelAdmin):
    """Read-only: a record is changed by its owner, the dispatcher or ``celery guard`` alone."""

    list_display = ("key", "task", "state", "reason", "attempt", "source", "created")
    list_filter = ("state", "task", "source")
    search_fields = ("=key", "=trigger_id", "=lock_key")
    ordering = ("-id",)
    show_full_result_count = False

    @admin.display(description="created", ordering="created_at")
    def created(self, execution: Execution) -> datetime:
        """When it was recorded."""
        return datetime.fromtimestamp(execution.created_at / 1000, UTC)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
