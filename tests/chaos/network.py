"""A TCP proxy that can fail as networks do: fall silent while connections stay open, or cut them all. Standard library alone."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65_536
T = TypeVar("T")


class Network:
    """Stands between clients and a server on loopback.

    >>> with Network(server.tcp_url("jobs")) as network:      # doctest: +SKIP
    ...     app = Evenflow(network.url)
    ...     network.freeze()   # nothing is forwarded; the kernel still answers keep-alives
    ...     network.thaw()
    """

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._flows: asyncio.Event
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """The target's address through this network."""
        port = self._server.sockets[0].getsockname()[1]
        login = self._target.netloc.rpartition("@")[0]
        return urlunsplit(self._target._replace(netloc=f"{login}@127.0.0.1:{port}"))

    def freeze(self) -> None:
        """Forward nothing any more, neither way, on old connections and new ones."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def thaw(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.set)

    def cut(self) -> None:
        """Reset every connection."""
        self._loop.call_soon_threadsafe(self._abort_all)

    async def _start(self) -> asyncio.Server:
        self._flows = asyncio.Event()
        self._flows.set()
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._flows.set()
        self._server.close()
        self._abort_all()
        await self._server.wait_closed()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await self._flows.wait()
            there = await asyncio.open_connection(self._target.hostname, self._target.port)
            await asyncio.gather(self._forward(reader, there[1]), self._forward(there[0], writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while data := await reader.read(CHUNK):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def _abort_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)
