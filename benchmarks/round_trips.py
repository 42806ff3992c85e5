"""Counts the round trips of clients: a process between them and the server, for a short run that is not timed.

A round trip begins when a client speaks after an answer that says "ready for the next query", or "send the rows" of a
COPY; what it sends without waiting is one. Run as `python -m benchmarks.round_trips SERVER_PORT FILE`, it writes its
port and its counts to the file.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit, urlunsplit

import uvloop

_PORT, _TRIPS, _CELLS = range(3)
_START_S = 20.0
_READY, _COPY_IN = ord("Z"), ord("G")
_HEAD = 5  # a type and a length that includes itself
# A client asks for encryption before it says anything else.
_ENCRYPT = {struct.pack("!ii", 8, code) for code in (80877103, 80877104)}


class RoundTrips:
    """What the harness sees of the counting process."""

    def __init__(self, path: Path) -> None:
        self._cells = _open(path)

    @property
    def port(self) -> int:
        return self._cells[_PORT]

    @property
    def count(self) -> int:
        """How many round trips all clients together have made."""
        return self._cells[_TRIPS]

    def through(self, url: str) -> str:
        """The same database, reached through the counting process."""
        parts = urlsplit(url)
        place, _, _ = parts.netloc.rpartition(":")
        return urlunsplit(parts._replace(netloc=f"{place}:{self.port}"))


@contextmanager
def counted(server_port: int, path: Path) -> Iterator[RoundTrips]:
    """Start the counting process, and end it afterwards."""
    path.write_bytes(bytes(8 * _CELLS))
    trips = RoundTrips(path)
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.round_trips", str(server_port), str(path)])
    try:
        deadline = time.monotonic() + _START_S
        while not trips.port:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the process that counts round trips did not start")
            time.sleep(0.005)
        yield trips
    finally:
        process.kill()
        process.wait()


class _ServerSide(asyncio.Protocol):
    """Passes on what the server says, and notes whether it waits for the client."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client
        self._head = b""  # of a message that was cut
        self._skip = 0  # bytes of a message that are still to come
        self.waits = True

    def data_received(self, data: bytes) -> None:
        self._read(data)
        self._client.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.close()

    def _read(self, data: bytes) -> None:
        if self._skip >= len(data):
            self._skip -= len(data)
            return
        data, position = self._head + data[self._skip :], 0
        while len(data) - position >= _HEAD:
            kind, length = struct.unpack_from("!BI", data, position)
            self.waits = self.waits or kind in (_READY, _COPY_IN)
            position += 1 + length
        self._head, self._skip = data[position:], max(position - len(data), 0)


class _ClientSide(asyncio.Protocol):
    """Passes on what a client says, and counts how often it begins to."""

    def __init__(self, server_port: int, cells: memoryview[int]) -> None:
        self._server_port = server_port
        self._cells = cells
        self._server: asyncio.Transport | None = None
        self._other: _ServerSide | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast(asyncio.Transport, transport)
        self._opening = asyncio.create_task(self._open())

    def data_received(self, data: bytes) -> None:
        if data in _ENCRYPT:
            self._client.write(b"N")
        elif self._server is None or self._other is None:
            self._early += data
        else:
            self._cells[_TRIPS] += self._other.waits
            self._other.waits = False
            self._server.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._opening.cancel()
        if self._server is not None:
            self._server.close()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server, self._other = await loop.create_connection(
            lambda: _ServerSide(self._client), "127.0.0.1", self._server_port
        )
        if self._early:
            self._server.write(self._early)


async def main() -> None:
    port, path = sys.argv[1:]
    cells = _open(Path(path))
    parent = os.getppid()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: _ClientSide(int(port), cells), "127.0.0.1", 0, family=socket.AF_INET, backlog=500
    )
    cells[_PORT] = listener.sockets[0].getsockname()[1]
    # A harness that was killed cannot end us.
    while True:
        await asyncio.sleep(1)
        if os.getppid() != parent:
            return


def _open(path: Path) -> memoryview[int]:
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("q")


if __name__ == "__main__":
    uvloop.run(main())
