"""Readers of server-sent events over real sockets; like browsers, they come back when they are cut off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from benchmarks.harness import BenchmarkError
from benchmarks.serving import up

_PATIENCE_S = 60.0
_CHUNK = 256 * 1024


class Listener:
    """One connection to `path`; content once it has heard an event of the type that it waits for, if any."""

    def __init__(self, port: int, path: str, awaited: str | None = None) -> None:
        self._port = port
        self._path = path
        self._awaited = awaited and f"event: {awaited}".encode()
        self._last_id = b""
        self._retry_s = 1.0
        self.attached = False
        self.content = awaited is None
        self.events = 0
        self.drops = 0

    async def listen(self) -> None:
        """For ever."""
        while True:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._read_one_response()
            self.drops += 1
            await asyncio.sleep(self._retry_s)

    async def _read_one_response(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            again = b"last-event-id: " + self._last_id + b"\r\n" if self._last_id else b""
            head = f"GET {self._path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n".encode()
            writer.write(head + again + b"\r\n")
            status = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]
            if status != b"200":
                raise BenchmarkError(f"{self._path} was answered with {status.decode()}")
            rest = b""
            while piece := await reader.read(_CHUNK):
                # Each frame is one chunk, so what frames the chunks falls on lines of its own.
                *frames, rest = (rest + piece).split(b"\n\n")
                for frame in frames:
                    self._read_frame(frame)
        finally:
            writer.close()

    def _read_frame(self, frame: bytes) -> None:
        for line in frame.split(b"\n"):
            if line.startswith(b"event: "):
                if line in (b"event: ping", b"event: snapshot"):
                    continue
                self.events += 1
                self.content = self.content or line == self._awaited
            elif line.startswith(b"id: "):
                self._last_id = line[4:]
            elif line.startswith(b"retry: "):
                self._retry_s = int(line[7:]) / 1000
                self.attached = True


class Audience:
    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    @property
    def events(self) -> int:
        """How many events they have heard between them."""
        return sum(listener.events for listener in self._listeners)

    @property
    def drops(self) -> int:
        """How often one of them was cut off."""
        return sum(listener.drops for listener in self._listeners)

    async def attached(self) -> None:
        """Wait until all of them listen."""
        await self._all(lambda listener: listener.attached, "could not begin to listen")

    async def content(self) -> None:
        """Wait until all have heard what they wait for."""
        await self._all(lambda listener: listener.content, "did not hear what they waited for")

    async def _all(self, are: Callable[[Listener], bool], failure: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while left := sum(not are(listener) for listener in self._listeners):
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{left} of {len(self._listeners)} listeners {failure}")
            await asyncio.sleep(0.002)


@asynccontextmanager
async def gathered(port: int, listeners: Sequence[Listener]) -> AsyncIterator[Audience]:
    """All of them listening, as soon as the server is up; gone afterwards."""
    await up(port)
    audience = Audience(listeners)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(listener.listen()) for listener in listeners]
            await audience.attached()
            yield audience
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
