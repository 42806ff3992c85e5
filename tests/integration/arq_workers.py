"""Arq workers in this process, and what Redis holds for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from unittest.mock import patch

import pytest
import redis.asyncio

from dutiful import Dutiful
from dutiful.arq_worker import ArqWorker, make_arq_worker


@pytest.fixture
def arq_app(app: Dutiful, empty_redis: str) -> Dutiful:
    """An app whose jobs are delivered through Redis, on both stores."""
    app.configure(redis_url=empty_redis)
    return app


@asynccontextmanager
async def arq_working(app: Dutiful, *, services: bool = True) -> AsyncIterator[ArqWorker]:
    """An Arq worker while the block runs, with shorter pauses than in production; it stops as after a signal."""
    with ExitStack() as stack:
        for name, seconds in (
            ("maintenance.runner.LEADER_POLL", 0.1),
            ("maintenance.runner.FOLLOWER_POLL", 0.2),
            ("worker.lanes.inbox.AGAIN", 0.1),
            ("arq_worker.POLL_DELAY", 0.02),
            ("arq_worker.LOOK_FOR_QUEUES", 0.1),
            ("arq_worker.LONGEST_DEFERRAL", 0.2),
        ):
            stack.enter_context(patch(f"dutiful.{name}", seconds))
        async with app.opened() as client:
            worker = make_arq_worker(app, client, services=services)
            work = asyncio.create_task(worker.run())
            starting = asyncio.create_task(worker.started.wait())
            await asyncio.wait({work, starting}, return_when=asyncio.FIRST_COMPLETED)
            starting.cancel()
            try:
                if work.done():
                    work.result()
                yield worker
            finally:
                worker.stop()
                await work


async def messages(url: str, queue: str = "default") -> list[str]:
    """The messages that Redis holds of a queue."""
    async with redis.asyncio.Redis.from_url(url) as client:
        found: list[bytes] = await client.zrange(f"dutiful:queue:{queue}", 0, -1)
        return [name.decode() for name in found]
