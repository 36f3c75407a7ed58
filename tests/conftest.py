"""Fixtures for all tests: those that users of the package can take too."""

pytest_plugins = ["celery_guard.testing.plugin"]
