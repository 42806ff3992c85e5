"""Readers of server-sent events over real sockets; like browsers, they reconnect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from benchmarks.harness import BenchmarkError
from benchmarks.serving import up

_TIMEOUT_S = 60.0
_CHUNK = 256 * 1024


class EventReader:
    """One connection to `path`; satisfied once it has received an event of the type that it waits for, if any."""

    def __init__(self, port: int, path: str, awaited: str | None = None) -> None:
        self._port = port
        self._path = path
        self._awaited = awaited and f"event: {awaited}".encode()
        self._last_id = b""
        self._retry_s = 1.0
        self.attached = False
        self.satisfied = awaited is None
        self.events = 0
        self.drops = 0

    async def read(self) -> None:
        """Read for ever."""
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
                # Each frame is one chunk, so the chunk headers are on lines of their own.
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
                self.satisfied = self.satisfied or line == self._awaited
            elif line.startswith(b"id: "):
                self._last_id = line[4:]
            elif line.startswith(b"retry: "):
                self._retry_s = int(line[7:]) / 1000
                self.attached = True


class EventReaders:
    def __init__(self, readers: Sequence[EventReader]) -> None:
        self._readers = readers

    @property
    def events(self) -> int:
        """How many events all of them have received."""
        return sum(reader.events for reader in self._readers)

    @property
    def drops(self) -> int:
        """How often one of them was disconnected."""
        return sum(reader.drops for reader in self._readers)

    async def attached(self) -> None:
        """Wait until all are connected."""
        await self._all(lambda reader: reader.attached, "could not connect")

    async def satisfied(self) -> None:
        """Wait until all have received what they wait for."""
        await self._all(lambda reader: reader.satisfied, "did not receive what they waited for")

    async def _all(self, are: Callable[[EventReader], bool], failure: str) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while left := sum(not are(reader) for reader in self._readers):
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{left} of {len(self._readers)} readers {failure}")
            await asyncio.sleep(0.002)


@asynccontextmanager
async def connected(port: int, readers: Sequence[EventReader]) -> AsyncIterator[EventReaders]:
    """All readers, connected as soon as the server is up, until the block ends."""
    await up(port)
    connected_readers = EventReaders(readers)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(reader.read()) for reader in readers]
            await connected_readers.attached()
            yield connected_readers
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
