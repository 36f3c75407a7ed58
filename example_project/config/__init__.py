"""The project's configuration. `celery -A example_project.config` finds the Celery app here."""

from example_project.config.celery import app as celery_app

__all__ = ["celery_app"]
