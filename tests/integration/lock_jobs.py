"""Jobs that take locks and record when they held them, and counts of holders and waiters."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import apsw
import asyncpg
from fault_jobs import LOOK, shut

from dutiful import Context, Dutiful, LaneSettings, Retry
from faults import until

app = Dutiful()
ONCE = Retry(max_attempts=1)
DIARY = "LOCK_DIARY"
LOCKS = """
select count(*) filter (where granted), count(*) filter (where not granted)
from pg_locks where locktype = 'advisory' and objsubid = 2
  and database = (select oid from pg_database where datname = current_database())
"""


@app.job(retry=ONCE)
async def update(ctx: Context, who: str, key: int) -> None:
    """Write that it has begun and that it has ended, both under the lock."""
    async with ctx.lock("edition", key):
        note(f"in {who}")
        await asyncio.sleep(LOOK)
        note(f"out {who}")


@app.job
async def hold(ctx: Context, gate: str, key: int = 1) -> int:
    """Hold the lock until the file `gate` is there."""
    async with ctx.lock("edition", key):
        note(f"in {ctx.attempt}")
        while shut(gate):  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(LOOK)
    return ctx.attempt


def note(line: str) -> None:
    """Short enough to be appended in one piece."""
    diary = os.open(os.environ[DIARY], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(diary, f"{line}\n".encode())
    os.close(diary)


class Room:
    """A critical section that records how many were inside at once, and in which order."""

    def __init__(self) -> None:
        self.inside = 0
        self.peak = 0
        self.guests: list[Any] = []
        self.entered = asyncio.Event()
        self.open = asyncio.Event()

    @asynccontextmanager
    async def guest(self, who: Any = None) -> AsyncIterator[None]:
        self.inside += 1
        self.peak = max(self.peak, self.inside)
        self.guests.append(who)
        self.entered.set()
        try:
            yield
        finally:
            self.inside -= 1


def another(app: Dutiful, **settings: Any) -> Dutiful:
    """An app on the same database, for a worker with locks of its own that serves the queue `other`."""
    url = app.settings.database_url
    return Dutiful(url, lanes=(LaneSettings("other", 8, ("other",)),), poll=app.settings.poll, **settings)


async def locks(url: str) -> tuple[int, int]:
    """How many locks are held and how many are waited for in the whole fleet, in either mode."""
    if url.startswith("sqlite"):
        # Not by the sqlite3 module, because another copy of the library drops our file locks when it closes the file.
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as db:
            db.setbusytimeout(5000)
            tables = [db.execute(f"select count(*) from {name}") for name in ("dutiful_lock", "dutiful_lock_wait")]
            return tables[0].get, tables[1].get
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        held, waiting = await connection.fetchrow(LOCKS)
        held += await connection.fetchval("select count(*) from dutiful.lock")
        return held, waiting + await connection.fetchval("select count(*) from dutiful.lock_wait")
    finally:
        await connection.close()


async def until_locks(url: str, held: int, waiting: int) -> None:
    seen = None

    async def look() -> bool:
        nonlocal seen
        seen = await locks(url)
        return seen == (held, waiting)

    try:
        await until(look, f"{held} locks are held and {waiting} waited for", within=20)
    except AssertionError as error:
        error.add_note(f"the last counts were {seen}")
        raise


def lines(diary: Path) -> list[str]:
    return diary.read_text().splitlines() if diary.exists() else []
