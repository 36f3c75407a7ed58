"""Django settings of the tests. Databases on servers are added by the fixtures that start those."""

import os
import tempfile

SECRET_KEY = "tests-only"
INSTALLED_APPS = ["celery_guard.contrib.django"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.path.join(tempfile.gettempdir(), f"celery_guard-tests-{os.getpid()}.sqlite3"),
    }
}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
