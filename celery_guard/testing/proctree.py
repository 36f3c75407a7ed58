"""Processes below a process: finding all of them, and signalling them without missing one.

A process group is not enough. PostgreSQL gives each backend a session of its own, and so may a task's
body: they are found by parenthood instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

_PROC = Path("/proc")


def living() -> dict[int, tuple[int, int]]:
    """Return parent and process group of every living process, by process id. Zombies are left out."""
    if (_PROC / "self" / "stat").exists():
        return _living_from_proc()
    command = ["ps", "-axo", "pid=,ppid=,pgid=,stat="]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = (line.split() for line in listing.stdout.splitlines())
    return {int(row[0]): (int(row[1]), int(row[2])) for row in rows if not row[3].startswith("Z")}


def _living_from_proc() -> dict[int, tuple[int, int]]:
    found = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue  # ended while we looked
        # The command's name may hold spaces and brackets: what follows its last bracket is regular.
        state, parent, group = text.rpartition(")")[2].split()[:3]
        if state not in ("Z", "X"):
            found[int(entry.name)] = (int(parent), int(group))
    return found


def alive(pid: int) -> bool:
    """Return whether a process runs under this id. A zombie does not."""
    return pid in living()


def descendants(pid: int) -> list[int]:
    """Return the living processes below ``pid``, nearest first, without ``pid`` itself."""
    children: dict[int, list[int]] = {}
    for child, (parent, _) in living().items():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    pending = [pid]
    while pending:
        below = children.get(pending.pop(0), [])
        found += below
        pending += below
    return found


def group_members(pgid: int) -> list[int]:
    """Return the living processes of a process group."""
    return [pid for pid, (_, group) in living().items() if group == pgid]


def send(pid: int, signum: int) -> bool:
    """Send a signal to one process. Return whether it was there to get it."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def send_group(pgid: int, signum: int) -> bool:
    """Send a signal to a process group. Return whether anybody was there to get it."""
    try:
        os.killpg(pgid, signum)
    except (ProcessLookupError, PermissionError):
        # macOS answers "not permitted" for a group in which only zombies are left.
        return False
    return True


def stop_tree(pid: int) -> list[int]:
    """Stop (SIGSTOP) a process and all below it. Return all their ids, ``pid`` first.

    A stopped process starts no children, so the search ends when it finds nobody new.
    """
    stopped: list[int] = []
    fresh = [pid]
    while fresh:
        for one in fresh:
            send(one, signal.SIGSTOP)
        stopped += fresh
        fresh = [one for one in descendants(pid) if one not in stopped]
    return stopped


def continue_tree(pid: int) -> None:
    """Let a process and all below it go on (SIGCONT), the lowest first, ``pid`` last."""
    for one in [*reversed(descendants(pid)), pid]:
        send(one, signal.SIGCONT)


def kill_tree(pid: int) -> list[int]:
    """Kill (SIGKILL) a process, its group and all below it. Return the ids that were there.

    They are stopped before the first is killed: killed one by one, a parent would start a new child in
    place of a dead one, and the children of a dead parent could no longer be found.
    """
    found = stop_tree(pid)
    found += [one for one in group_members(pid) if one not in found]
    send_group(pid, signal.SIGKILL)
    for one in found:
        send(one, signal.SIGKILL)
    return found
