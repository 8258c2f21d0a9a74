"""A proxy between an engine and its server that can fail as networks do: drop a message, or an answer, or all answers."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

PORT = 5432
Fate = Literal["pass", "lose message", "lose answer", "mute"]


class Proxy:
    """Listens on a socket in `folder`. `fate` looks at each message of a client and decides what becomes of it.

    "lose message": the server never sees it, and the connection ends. "lose answer": the server carries it out, and
    the connection ends before the client hears of it. "mute": from now on no answer reaches the client at all.
    """

    def __init__(self, target: str, folder: Path) -> None:
        self._target = conninfo_to_dict(target)
        self._folder = folder
        self._listener = socket.socket(socket.AF_UNIX)
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.fate: Callable[[bytes], Fate] = lambda message: "pass"

    def __enter__(self) -> Self:
        self._listener.bind(str(self._folder / f".s.PGSQL.{PORT}"))
        self._listener.listen()
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    @property
    def conninfo(self) -> str:
        """How a client reaches the server through this proxy."""
        kept = {name: value for name, value in self._target.items() if name in ("user", "password", "dbname")}
        return make_conninfo("", **kept, host=str(self._folder), port=PORT, sslmode="disable")

    def _start(self, act: Callable[[], None]) -> None:
        thread = threading.Thread(target=act, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            if select.select([self._listener], [], [], 0.05)[0]:
                client = self._listener.accept()[0]
                self._start(lambda client=client: self._serve(client))  # type: ignore[misc]

    def _serve(self, client: socket.socket) -> None:
        with client, self._connect() as server, contextlib.suppress(OSError):
            mood: Fate = "pass"
            while not self._ended.is_set():
                ready = select.select([client, server], [], [], 0.05)[0]
                if server in ready:
                    answer = server.recv(65536)
                    if not answer or mood == "lose answer":
                        return
                    if mood != "mute":
                        client.sendall(answer)
                if client in ready:
                    message = client.recv(1 << 20)
                    if mood == "pass":
                        mood = self.fate(message)
                    if not message or mood == "lose message":
                        return
                    server.sendall(message)

    def _connect(self) -> socket.socket:
        host, port = str(self._target["host"]), int(self._target.get("port") or PORT)
        if not host.startswith("/"):
            return socket.create_connection((host, port), timeout=10)
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server


def once(fate: Fate, mark: bytes) -> Callable[[bytes], Fate]:
    """This fate for the first message that holds the mark; the others pass."""
    left = [fate]

    def decide(message: bytes) -> Fate:
        return left.pop() if left and mark in message else "pass"

    return decide
