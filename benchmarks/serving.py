"""The admin API as in production: `dutiful server` in a process of its own, called over HTTP with a token."""

from __future__ import annotations

import asyncio
import http.client
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from benchmarks.harness import BenchmarkError
from dutiful import Dutiful
from dutiful.client.client import Client
from dutiful.core.principal import Role
from dutiful.operator import Operator
from dutiful.web.api.metrics import FRESH, LONGEST, SHARE
from servers import free_port

# The app of the server process; its database is an option of the command.
app = Dutiful()

PATHS = {
    "metrics": "/metrics",
    "statistics": "/api/jobs/admin/queue/statistics/",
    "queues": "/api/jobs/admin/queues/",
}
RUNS = 15
_TIMEOUT_S = 60.0


class Api:
    """One client, which connects for each request, because a server closes connections that are idle for long."""

    def __init__(self, port: int, secret: str) -> None:
        self._port = port
        self._headers = {"authorization": f"Bearer {secret}"}
        self._stale_at = 0.0

    async def first(self, name: str) -> float:
        """Milliseconds from the request to the end of the response, once."""
        return await asyncio.to_thread(self._milliseconds, name)

    async def median(self, name: str) -> float:
        """The median of many."""
        return statistics.median([await self.first(name) for _ in range(RUNS)])

    def _milliseconds(self, name: str) -> float:
        if name == "metrics":
            # Within this time the page of the last scrape would be shown again, and nothing be measured.
            time.sleep(max(0.0, self._stale_at - time.monotonic()))
        start = time.perf_counter()
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", PATHS[name], headers=self._headers)
            answer = connection.getresponse()
            body = answer.read()
        taken = time.perf_counter() - start
        if name == "metrics":
            self._stale_at = time.monotonic() + max(FRESH, min(SHARE * taken, LONGEST)) + 0.01
        if answer.status != 200:
            raise BenchmarkError(f"{PATHS[name]} was answered with {answer.status}: {body[:200]!r}")
        return taken * 1000


@asynccontextmanager
async def served(url: str, client: Client) -> AsyncIterator[Api]:
    """The API of the database at `url`, for which `client` makes a token; every path has been called once before."""
    _, secret = await Operator(client).tokens.create("bench", Role.MANAGER)
    port = free_port()
    with _server(url, port):
        await up(port)
        api = Api(port, secret)
        for name in PATHS:
            await api.first(name)
        yield api


@contextmanager
def _server(url: str, port: int) -> Iterator[None]:
    command = [str(Path(sys.executable).with_name("dutiful"))]
    command += ["--database-url", url if url.startswith("postgresql:") else f"sqlite:///{url}"]
    command += ["server", f"{__name__}:app", "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def up(port: int) -> None:
    """Wait until a server listens on the port."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"no server listens on port {port}") from None
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return
