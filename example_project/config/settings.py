"""Django and Celery settings of the example.

Environment variables change them: `EXAMPLE_DATABASE` (the SQLite file), `EXAMPLE_REDIS` (a Redis or Valkey
server, without a database number), `EXAMPLE_PAGE_SECONDS` (how long a page of an assessment lasts at least)
and `EXAMPLE_DEBUG` ("0" for workers: with DEBUG on, Django remembers every query).
"""

import os
from pathlib import Path

from example_project.config.schedule import beat_schedule

PROJECT_DIR = Path(__file__).parents[1]
REDIS = os.environ.get("EXAMPLE_REDIS", "redis://127.0.0.1:6379")

SECRET_KEY = "demo-only-not-a-secret"
DEBUG = os.environ.get("EXAMPLE_DEBUG", "1") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "celery_guard.contrib.django",
    "example_project.compensation",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "example_project.config.urls"
WSGI_APPLICATION = "example_project.config.wsgi.application"
STATIC_URL = "static/"
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_THOUSAND_SEPARATOR = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Several processes write to one SQLite file. In WAL mode readers never wait, and IMMEDIATE makes a writer
# queue for the lock at the start of its transaction, where waiting works: in the middle SQLite gives up.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("EXAMPLE_DATABASE", PROJECT_DIR / "example.sqlite3"),
        "OPTIONS": {
            "timeout": 30,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}

CELERY_BROKER_URL = f"{REDIS}/0"
CELERY_RESULT_BACKEND = f"{REDIS}/1"
CELERY_GUARD_STORE = f"{REDIS}/2"
CELERY_BEAT_SCHEDULE = beat_schedule()
CELERY_TASK_DEFAULT_QUEUE = "assessments"
CELERY_TASK_ROUTES = {"example_project.compensation.tasks.import_flights": {"queue": "imports"}}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

COMPENSATION_PAGE = 2000  # flights that one page of a task reads or writes
COMPENSATION_PAGE_SECONDS = float(os.environ.get("EXAMPLE_PAGE_SECONDS", "0"))
