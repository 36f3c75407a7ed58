"""A TCP proxy before a Redis, which counts what is asked and can lose an answer."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class RedisProxy:
    """Stands before ``port`` of this machine. As a context manager it starts and closes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.asked: list[bytes] = []
        #: how many of the next answers get lost; the connection breaks with each
        self.lose = 0
        self._sockets: list[socket.socket] = [self._listener]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def commands(self) -> int:
        """Return how many commands were asked."""
        return sum(_commands(text) for text in self.asked)

    def __enter__(self) -> RedisProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, server]
                threading.Thread(target=self._ask, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answer, args=(client, server), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 20):
                self.asked.append(data)
                server.sendall(data)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 20):
                if self.lose:
                    self.lose -= 1
                    client.shutdown(socket.SHUT_RDWR)
                    server.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)


def _commands(data: bytes) -> int:
    """Count the commands in a piece of the protocol."""
    count, rest = 0, data
    while rest.startswith(b"*"):
        head, _, rest = rest.partition(b"\r\n")
        for _ in range(int(head[1:])):
            size, _, rest = rest.partition(b"\r\n")
            rest = rest[int(size[1:]) + 2 :]
        count += 1
    return count
