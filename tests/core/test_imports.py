"""What an import loads: the package none of celery, redis and django, the core the standard library only."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import celery_guard.core


def loaded_by(statement: str) -> set[str]:
    """Return the names of top-level modules that a fresh interpreter loads for this statement."""
    program = (
        "import json, sys\n"
        "before = set(sys.modules)\n"
        f"{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_importing_the_package_loads_no_third_party() -> None:
    foreign = loaded_by("import celery_guard") - set(sys.stdlib_module_names) - {"celery_guard"}
    assert foreign == set()


def test_the_core_and_the_memory_store_stand_on_the_standard_library() -> None:
    names = [
        f"celery_guard.core.{module.name}" for module in pkgutil.iter_modules(celery_guard.core.__path__)
    ]
    assert "celery_guard.core.rules" in names
    statement = f"import celery_guard.stores.memory, {', '.join(names)}"
    assert loaded_by(statement) - set(sys.stdlib_module_names) == {"celery_guard"}


def test_what_a_user_needs_is_exported() -> None:
    for name in celery_guard.__all__:
        assert getattr(celery_guard, name) is not None
