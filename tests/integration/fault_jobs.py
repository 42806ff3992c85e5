"""Jobs that kill, block, wait and count: what the workers of the fault tests run."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from dutiful import Context, Dutiful
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from dutiful.testing.faults import Fleet, WorkerProcess

app = Dutiful()
ticking = Dutiful()
DIARY = "FAULT_DIARY"
LOOK = 0.01
BULK = 100_000
FLOOD = 200


@app.job(max_crashes=1000)
async def brief(ctx: Context, milliseconds: int) -> None:
    write_down(ctx.job_id)
    await asyncio.sleep(milliseconds / 1000)


@app.job(queue="long", max_crashes=1000)
async def lengthy(ctx: Context, seconds: float) -> None:
    write_down(ctx.job_id)
    await asyncio.sleep(seconds)


@app.job
async def nothing(ctx: Context) -> int:
    write_down(ctx.job_id)
    return os.getpid()


@app.job
async def killer(ctx: Context) -> None:
    write_down(ctx.job_id)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(timeout="2s")
async def stuck(ctx: Context) -> None:
    """Holds the event loop for an hour."""
    write_down(ctx.job_id)
    time.sleep(3600)  # noqa: ASYNC251 - the fault itself


@app.job
async def deaf(ctx: Context, gate: str) -> int:
    """Holds the event loop until the file `gate` is there, so that nobody can tell it anything."""
    write_down(ctx.job_id)
    while shut(gate):
        time.sleep(LOOK)  # noqa: ASYNC251 - the fault itself
    return os.getpid()


@app.job
async def patient(ctx: Context, gate: str) -> int:
    """Waits until the file `gate` is there; when it is interrupted instead, it leaves a file `gate`.interrupted."""
    write_down(ctx.job_id)
    try:
        while shut(gate):  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(LOOK)
    except asyncio.CancelledError:
        mark_interrupted(gate)
        raise
    return os.getpid()


@app.job
def stubborn(ctx: Context, gate: str) -> int:
    """Waits in a thread, and heeds nobody."""
    write_down(ctx.job_id)
    while True:
        with contextlib.suppress(Exception):
            while shut(gate):
                time.sleep(LOOK)
            return os.getpid()


@app.job
async def unmoved(ctx: Context, gate: str) -> int:
    """Waits on the event loop, and heeds nobody."""
    write_down(ctx.job_id)
    while shut(gate):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(LOOK)
    return os.getpid()


@app.job
async def entangled(ctx: Context, gate: str) -> int:
    """Waits for a thread that heeds nobody."""
    return await asyncio.to_thread(stubborn, ctx, gate)


@app.job(process=True, timeout="never")
def engrossed(told: str) -> None:
    """Tells the file which process it is, and then computes for hours in C, where no thread beside it can run."""
    Path(told).write_text(str(os.getpid()))
    sum(range(10**13))


@app.job(queue="inert")
async def inert() -> None:
    """For those that only want to write."""


@app.job
async def voluminous(ctx: Context, gate: str) -> str:
    """Waits until the file `gate` is there, and then has a result that takes room."""
    await patient(ctx, gate)
    return "x" * BULK


@app.job
async def bulky(ctx: Context, text: str) -> None:
    """Takes room while it waits."""
    write_down(ctx.job_id)


@ticking.job
async def tick(ctx: Context) -> None:
    write_down(ctx.job_id)


@ticking.job(queue="later")
async def later(ctx: Context) -> None:
    write_down(ctx.job_id)


ticking.schedule(tick, every="1s", catch_up="all")


def shut(gate: str) -> bool:
    """Whether there is neither the file `gate` nor one of this process alone."""
    return not Path(gate).exists() and not Path(f"{gate}.{os.getpid()}").exists()


def gate_of(gate: Path, worker: WorkerProcess) -> Path:
    """The gate of one worker alone."""
    return gate.with_name(f"{gate.name}.{worker.pid}")


def mark_interrupted(gate: str) -> None:
    Path(f"{gate}.interrupted").touch()


def write_down(job_id: UUID) -> None:
    """One line for each time that a handler was started: short enough to be appended in one piece."""
    path = os.environ.get(DIARY)
    if path:
        diary = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(diary, f"{job_id}\n".encode())
        os.close(diary)


def executions(folder: Path) -> list[UUID]:
    """Which jobs were started, once for each time."""
    diary = folder / "diary"
    lines = diary.read_text().splitlines() if diary.exists() else []
    return [UUID(line) for line in lines if len(line) == 36]  # the last one may be half written


@asynccontextmanager
async def fleet(store: Store, folder: Path, *, of: Dutiful = app, **settings: str) -> AsyncIterator[Fleet]:
    """Workers on the database of `store`, and the app itself opened on it, for enqueueing; DUTIFUL_* are `settings`."""
    url = address(store)
    environment = {f"DUTIFUL_{name.upper()}": value for name, value in settings.items()}
    environment[DIARY] = str(folder / "diary")
    name = "ticking" if of is ticking else "app"
    of.configure(database_url=url)
    async with (
        of,
        Fleet(f"fault_jobs:{name}", url, folder=folder, path=Path(__file__).parent, environment=environment) as started,
    ):
        yield started


def address(store: Store) -> str:
    return store.direct_dsn if isinstance(store, PostgresStore) else store.url


async def flood() -> None:
    """Enqueue as fast as it goes, and say how much was acknowledged."""
    while True:
        await inert.enqueue_many({} for _ in range(FLOOD))
        print(FLOOD, flush=True)


if __name__ == "__main__":
    asyncio.run(flood())
