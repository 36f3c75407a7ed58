"""The app's configuration."""

from __future__ import annotations

from django.apps import AppConfig


class CeleryGuardConfig(AppConfig):
    """Tables of the database store; the label is ``celery_guard``."""

    name = "celery_guard.contrib.django"
    label = "celery_guard"
    verbose_name = "Celery guard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401 - registers them
