"""The Django app: the database store, system checks, and publishing on commit.

Add ``"celery_guard.contrib.django"`` to ``INSTALLED_APPS``, run ``migrate`` and set
``CELERY_GUARD_STORE = "django://default"``.
"""
