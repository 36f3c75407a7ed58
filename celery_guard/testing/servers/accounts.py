"""As whom a server runs, and the folder that belongs to it alone.

PostgreSQL and MariaDB refuse to run as root. Where the tests run as root, such a server gets an account
without rights and a folder of its own; nothing that exists is opened to that account.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def unprivileged(*preferred: str) -> tuple[int, int] | None:
    """Return user and group to run as: None (as you are) if not root, else the first account there is."""
    if os.geteuid() != 0:
        return None
    for name in (*preferred, "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise LookupError(f"running as root, and none of the accounts {(*preferred, 'nobody')} exists")


def own_folder(kind: str, account: tuple[int, int] | None) -> Path:
    """Create a folder below the system's temporary one that only ``account`` (and root) can enter."""
    folder = Path(tempfile.mkdtemp(prefix=f"guard-{kind}-"))
    if account is not None:
        os.chown(folder, *account)
    return folder


def run_as(
    account: tuple[int, int] | None, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as ``account`` and return its exit code and output. At most two minutes."""
    user, group = account or (None, None)
    return subprocess.run(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=120,
        user=user,
        group=group,
        # Root's own further groups must not go along.
        extra_groups=None if account is None else [],
    )


def why_not_runnable(account: tuple[int, int] | None, argv: Sequence[str]) -> str | None:
    """Return None if ``account`` can run this command (give one that ends at once), else why not."""
    try:
        done = run_as(account, argv, cwd=Path("/"))
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{argv[0]} cannot be run as user {account[0] if account else os.geteuid()}: {error}"
    return None if done.returncode == 0 else f"{argv[0]} failed: {done.stderr.strip()[-300:]}"
