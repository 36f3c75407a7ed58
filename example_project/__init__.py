"""Delay compensation for flights: a small Django project whose scheduled jobs are guarded by celery_guard."""
