"""One app, many event loops: each has a client of its own, and what a loop leaves behind is closed."""

import asyncio
import threading
from pathlib import Path

import asyncpg
import pytest
from running_workers import eventually

from dutiful import Dutiful, StoreUnavailable
from dutiful.kind import Kind

both = pytest.mark.parametrize("app_url", ["sqlite", "postgres18"], indirect=True)


def make(url: str) -> Kind[[int], None]:
    app = Dutiful(url)

    @app.job
    async def ping(n: int) -> None: ...

    return ping


def left_open(path: Path) -> tuple[int, int]:
    """Threads, and open files, for one database."""
    links = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return sum(str(path) in t.name for t in threading.enumerate()), sum(str(path) in link for link in links)


def test_loop_after_loop_leaves_no_threads_and_files_behind(sqlite_path: Path) -> None:
    ping = make(f"sqlite:///{sqlite_path}")

    async def enqueue(n: int) -> tuple[int, int]:
        await ping.enqueue(n)
        return left_open(sqlite_path)

    seen = [asyncio.run(enqueue(n)) for n in range(6)]
    assert max(seen) == seen[0]


async def test_loop_after_loop_leaves_no_connections_behind(pg18_url: str) -> None:
    ping = make(pg18_url)

    def loops() -> None:
        for n in range(6):
            asyncio.run(enqueue(n))

    async def enqueue(n: int) -> None:
        await ping.enqueue(n)

    await asyncio.to_thread(loops)
    other = await asyncpg.connect(pg18_url)
    count = "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle'"

    async def gone() -> bool:
        return bool(await other.fetchval(count) <= 3)  # fewer than one for each loop

    await eventually(gone)
    await other.close()


@both
def test_threads_with_a_loop_each_share_an_app(app_url: str) -> None:
    ping = make(app_url)
    done: list[int] = []

    async def work() -> None:
        async with asyncio.timeout(20):
            for n in range(20):
                await asyncio.gather(*(ping.enqueue(n) for _ in range(3)))
                done.append(n)
        await ping._enqueuer.close()  # type: ignore[attr-defined]

    threads = [threading.Thread(target=asyncio.run, args=(work(),), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(done) == 60


async def test_to_close_the_app_closes_the_client_of_this_loop_only(app: Dutiful) -> None:
    here = await app.client()
    ready, closed = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        there = await app.client()
        assert there is not here
        ready.set()
        await asyncio.to_thread(closed.wait, 20)
        assert await app.client() is there
        assert await there.store.queries.queues() == []
        await app.close()

    thread = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await asyncio.to_thread(ready.wait, 20)
    await app.close()
    with pytest.raises(StoreUnavailable):
        await here.store.queries.queues()
    closed.set()
    await thread
