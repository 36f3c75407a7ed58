"""What pytest-celery 1.3 does not survive outside of its own containers, put right for a session."""

from __future__ import annotations

import gc
import importlib
from types import SimpleNamespace
from typing import Any

import pytest


def speak_to_this_machine(patch: pytest.MonkeyPatch) -> None:
    """Reach servers by their ports on this machine, also where the tests run in a container (as CI does).

    pytest-docker-tools would go to the inner ports on a Docker network instead.
    """
    from pytest_docker_tools.wrappers import container

    patch.setattr(container, "tests_inside_container", lambda: False)


def leave_lazy_objects_alone(patch: pytest.MonkeyPatch) -> None:
    """Let the tear-down of a Redis backend look for results without waking every lazy object there is.

    It asks ``isinstance`` of all objects alive. A proxy answers with the class of what it stands for, which
    it makes first: Django's settings without a module to read raise, others connect to a database.
    """
    from celery.result import AsyncResult

    api: Any = importlib.import_module("pytest_celery.vendors.redis.backend.api")

    def results() -> list[object]:
        return [found for found in gc.get_objects() if issubclass(type(found), AsyncResult)]

    patch.setattr(api, "gc", SimpleNamespace(collect=gc.collect, get_objects=results))
