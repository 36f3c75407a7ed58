"""Loopback ports for servers that are stopped and started again under the same number."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"

# Below the ports that the usual kernels give to outgoing connections. A server's port must not be one of
# those: while the server is down, a client that keeps trying to connect may be given that very port as its
# own and then connects to itself, and the server cannot start any more.
_RANGE = range(20_000, 32_000)
_given: set[int] = set()


def free_port() -> int:
    """Return a TCP port on which nobody listens, and which this process was not given before."""
    for port in random.sample(_RANGE, 200):
        if port not in _given and _can_listen(port):
            _given.add(port)
            return port
    raise OSError(f"no free port on {LOOPBACK} in {_RANGE.start}..{_RANGE.stop - 1}")


def _can_listen(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
