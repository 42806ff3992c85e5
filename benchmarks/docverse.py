"""From the signal that a build is uploaded until its pages are visible, in the documentation host of the examples."""

from __future__ import annotations

import asyncio
import io
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks.harness import Bench, BenchmarkError, Metrics, Sizes
from benchmarks.peer import Peer
from benchmarks.scenario import Metric, Scenario
from examples.docverse.story import Servers, Story, opened
from examples.servers import own_redis

ORG, PROJECT, EDITIONS, OBJECTS, WORKERS = "bench", "bench/guide", 50, 20, 2
_AT_ONCE = 4  # builds on their way, each of another edition
_WARM_UP = 10


async def docverse(bench: Bench, peer: Peer) -> Metrics:
    """The same builds with the store's own delivery and with Arq, one after the other."""
    with own_redis() as redis:
        by_store = await _published(bench, None)
        by_arq = await _published(bench, redis)
    return {
        "store_p50_ms": by_store[49], "store_p99_ms": by_store[98], "arq_p50_ms": by_arq[49], "arq_p99_ms": by_arq[98],
    }  # fmt: skip


async def _published(bench: Bench, redis: str | None) -> list[float]:
    """The percentiles, in milliseconds."""
    with tempfile.TemporaryDirectory(dir=bench.directory) as folder:
        quiet = Console(file=io.StringIO())
        async with (
            opened(quiet, Path(folder), Servers(bench.server.dsn(), redis), (0, 0)) as story,
            AsyncExitStack() as stack,
        ):
            await story.client.call("POST", "/orgs", json={"slug": ORG, "title": "Bench", "publishing_mode": "pointer"})
            await story.client.call("POST", f"/orgs/{ORG}/projects", json={"slug": "guide", "title": "Guide"})
            for _ in range(WORKERS):
                await stack.enter_async_context(story.working())
            waits = await _waits(story, _WARM_UP + bench.sizes.docverse_builds)
    return [1000 * cut for cut in statistics.quantiles(waits[_WARM_UP:], n=100, method="inclusive")]


async def _waits(story: Story, builds: int) -> list[float]:
    numbers, waits = iter(range(builds)), [0.0] * builds

    async def publish() -> None:
        for number in numbers:
            ref = f"branch-{number % EDITIONS}"
            pages = {f"page-{n}.html": f"<p>{number} {n}</p>" for n in range(OBJECTS - 1)} | {"index.html": str(number)}
            build = await story.client.build(PROJECT, ref, pages)
            with _purged(story, f"{PROJECT}/v/{ref}") as visible:
                began = time.perf_counter()
                await story.client.signal(PROJECT, build)
                async with asyncio.timeout(60):
                    await visible.wait()
                waits[number] = time.perf_counter() - began
            if await story.page(PROJECT, f"v/{ref}/") != str(number):
                raise BenchmarkError(f"edition {ref} does not show build {build}")

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(publish())
    return waits


@contextmanager
def _purged(story: Story, path: str) -> Iterator[asyncio.Event]:
    """Set when the edge has purged an edition, after which readers get the pages of its new build."""
    visible = story.edge.purged[path] = asyncio.Event()
    try:
        yield visible
    finally:
        del story.edge.purged[path]


def _seconds(sizes: Sizes) -> float:
    return 30 + sizes.docverse_builds / 5


DOCVERSE_SCENARIOS = (
    Scenario(
        "docverse",
        "From a build's upload to its pages, by the store's delivery and by Arq",
        docverse,
        (
            Metric("store_p50_ms", "store p50 ms", higher_is_better=False),
            Metric("store_p99_ms", "p99 ms", higher_is_better=False),
            Metric("arq_p50_ms", "Arq p50 ms", higher_is_better=False),
            Metric("arq_p99_ms", "p99 ms", higher_is_better=False),
        ),
        _seconds,
        repeats=1,
    ),
)
