"""Does a server answer? Each question in the server's own protocol, without its client library.

An open port is not an answer: a server that is loading or recovering its data accepts connections too.
"""

from __future__ import annotations

import socket
import struct

from celery_guard.testing.servers.ports import LOOPBACK

_TIMEOUT = 2.0


def redis_answers(port: int) -> bool:
    """Whether a Redis or Valkey on this port answers commands (it does not while it loads its data)."""
    return _exchange(port, b"PING\r\n").startswith(b"+PONG")


def amqp_answers(port: int) -> bool:
    """Whether an AMQP 0-9-1 broker on this port begins a connection."""
    # The answer is a method frame (type 1, channel 0) with the method connection.start (class 10, 10).
    frame = _exchange(port, b"AMQP\x00\x00\x09\x01", at_least=11)
    return frame[:3] == b"\x01\x00\x00" and frame[7:11] == b"\x00\x0a\x00\x0a"


def mysql_answers(port: int) -> bool:
    """Whether a MariaDB or MySQL on this port greets (protocol 10) instead of refusing."""
    return _exchange(port, b"", at_least=5)[4:5] == b"\x0a"


def postgres_answers(port: int, *, user: str, database: str) -> bool:
    """Whether a PostgreSQL on this port opens a session for this user without a password."""
    fields = b"".join(part.encode() + b"\0" for part in ("user", user, "database", database)) + b"\0"
    packet = struct.pack("!ii", 8 + len(fields), 196_608) + fields
    # R (authentication) with code 0 is "you are in"; E is an error, such as "the database is starting up".
    answer = _exchange(port, packet, at_least=9)
    return answer[:1] == b"R" and answer[5:9] == b"\0\0\0\0"


def _exchange(port: int, question: bytes, *, at_least: int = 5) -> bytes:
    """Send ``question`` and return what comes back, or nothing if nobody answers."""
    try:
        with socket.create_connection((LOOPBACK, port), _TIMEOUT) as connection:
            connection.settimeout(_TIMEOUT)
            connection.sendall(question)
            answer = b""
            while len(answer) < at_least:
                piece = connection.recv(4096)
                if not piece:
                    break
                answer += piece
            return answer
    except OSError:
        return b""
