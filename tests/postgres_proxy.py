"""A proxy in front of Postgres that can lose replies."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

Look = Callable[[bytes], Awaitable[bool]]


class Proxy:
    """Stands between clients and Postgres, and may end a connection instead of passing on a reply."""

    def __init__(self, url: str) -> None:
        self._upstream = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._look: Look | None = None
        self.cuts = 0
        self.shut = False
        """Whether new connections are refused."""

    @property
    def url(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        user = f"{self._upstream.username}@" if self._upstream.username else ""
        return urlunsplit(self._upstream._replace(netloc=f"{user}{host}:{port}"))

    def cut(self, look: Look) -> None:
        """End the connection once, at the first reply for which `look` returns true; `look` sees later replies too."""
        self._look = look
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self.shut:
            to_client.transport.abort()
            return
        server, to_server = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        asking = asyncio.create_task(self._pass_on(client, to_server))
        try:
            while data := await server.read(65536):
                if self._look is not None and await self._look(data) and self.cuts == 0:
                    self.cuts += 1
                    break
                to_client.write(data)
                await to_client.drain()
        except ConnectionError:
            pass
        finally:
            asking.cancel()
            to_client.transport.abort()
            to_server.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()
