"""Jobs that kill, block, wait and count, for the workers of the fault tests."""

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from dutiful import Context, Dutiful, Inject, Retry
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from faults import Fleet, WorkerProcess

app = Dutiful()
ticking = Dutiful()
loading = Dutiful()
DIARY = "FAULT_DIARY"
LOOK = 0.01
BULK = 100_000
FLOOD = 200


@app.job(max_crashes=1000)
async def brief(ctx: Context, milliseconds: int) -> None:
    record_start(ctx.job_id)
    await asyncio.sleep(milliseconds / 1000)


@app.job(queue="long", max_crashes=1000)
async def lengthy(ctx: Context, seconds: float) -> None:
    record_start(ctx.job_id)
    await asyncio.sleep(seconds)


@app.job
async def nothing(ctx: Context) -> int:
    record_start(ctx.job_id)
    return os.getpid()


@app.job
async def surroundings() -> list[str]:
    return list(os.environ)


@app.job
async def meet(ctx: Context, folder: str, workers: int) -> str:
    """Waits until so many workers run such a job, each of which makes a file met.<name>."""
    record_start(ctx.job_id)
    while meeting(folder, "python") < workers:  # noqa: ASYNC110 - other processes make the files
        await asyncio.sleep(LOOK)
    return "python"


@app.job
async def killer(ctx: Context) -> None:
    record_start(ctx.job_id)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(timeout="2s")
async def stuck(ctx: Context) -> None:
    """Blocks the event loop for an hour."""
    record_start(ctx.job_id)
    time.sleep(3600)  # noqa: ASYNC251 - the fault itself


@app.job(timeout="200ms", retry=Retry(max_attempts=1))
def hang(ctx: Context) -> None:
    """Blocks its thread for an hour."""
    record_start(ctx.job_id)
    time.sleep(3600)


@app.job(timeout="200ms", retry=Retry(max_attempts=1))
async def hang_elsewhere(ctx: Context) -> None:
    """Waits for a thread that is blocked for an hour."""
    record_start(ctx.job_id)
    await asyncio.to_thread(time.sleep, 3600)


@app.job(timeout="1s")
def seize(ctx: Context) -> None:
    """Keeps the interpreter lock in C for an hour, so that no other thread runs."""
    record_start(ctx.job_id)
    ctypes.PyDLL(None).sleep(3600)


@app.job
def seize_endlessly(ctx: Context) -> None:
    """The same, for an hour that no timeout ends."""
    record_start(ctx.job_id)
    ctypes.PyDLL(None).sleep(3600)


@loading.resource
def model() -> str:
    """Takes long to load, in a call into C that keeps the interpreter lock."""
    ctypes.PyDLL(None).sleep(6)
    return "loaded"


@loading.job
async def predict(ctx: Context, model: str = Inject("model")) -> str:
    return model


@app.job
async def block_loop(ctx: Context, gate: str) -> int:
    """Blocks the event loop until the file `gate` exists, so that it cannot be cancelled."""
    record_start(ctx.job_id)
    while shut(gate):
        time.sleep(LOOK)  # noqa: ASYNC251 - the fault itself
    return os.getpid()


@app.job
async def wait(ctx: Context, gate: str) -> int:
    """Waits until the file `gate` exists; if it is interrupted instead, it makes a file `gate`.interrupted."""
    record_start(ctx.job_id)
    try:
        while shut(gate):  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(LOOK)
    except asyncio.CancelledError:
        mark_interrupted(gate)
        raise
    return os.getpid()


@app.job
def ignore_cancel_in_thread(ctx: Context, gate: str) -> int:
    """Waits in a thread, and ignores cancellation."""
    record_start(ctx.job_id)
    while True:
        with contextlib.suppress(Exception):
            while shut(gate):
                time.sleep(LOOK)
            return os.getpid()


@app.job
async def ignore_cancel(ctx: Context, gate: str) -> int:
    """Waits on the event loop, and ignores cancellation."""
    record_start(ctx.job_id)
    while shut(gate):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(LOOK)
    return os.getpid()


@app.job
async def await_thread(ctx: Context, gate: str) -> int:
    """Waits for a thread that ignores cancellation."""
    return await asyncio.to_thread(ignore_cancel_in_thread, ctx, gate)


@app.job(process=True, timeout="never")
def compute_in_c(pid_file: str) -> None:
    """Writes its process id to the file, and computes for hours in C, where no other thread can run."""
    Path(pid_file).write_text(str(os.getpid()))
    sum(range(10**13))


@app.job(queue="inert")
async def inert() -> None:
    """A kind of which jobs are only enqueued."""


@app.job
async def large_result(ctx: Context, gate: str) -> str:
    """Waits until the file `gate` exists, and then has a large result."""
    await wait(ctx, gate)
    return "x" * BULK


@app.job
async def large_payload(ctx: Context, text: str) -> None:
    """A job with a large payload."""
    record_start(ctx.job_id)


@ticking.job
async def tick(ctx: Context) -> None:
    record_start(ctx.job_id)


@ticking.job(queue="later")
async def later(ctx: Context) -> None:
    record_start(ctx.job_id)


ticking.schedule(tick, every="1s", catch_up="all")


def shut(gate: str) -> bool:
    """Whether neither the file `gate` nor the one of this process exists."""
    return not Path(gate).exists() and not Path(f"{gate}.{os.getpid()}").exists()


def gate_of(gate: Path, worker: WorkerProcess) -> Path:
    """The gate of one worker."""
    return gate.with_name(f"{gate.name}.{worker.pid}")


def meeting(folder: str, name: str) -> int:
    """Marks that this worker is there; returns how many are."""
    Path(folder, f"met.{name}").touch()
    return len(list(Path(folder).glob("met.*")))


def mark_interrupted(gate: str) -> None:
    Path(f"{gate}.interrupted").touch()


def record_start(job_id: UUID) -> None:
    """Append one line for each start of a handler; it is short enough to be written atomically."""
    path = os.environ.get(DIARY)
    if path:
        diary = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(diary, f"{job_id}\n".encode())
        os.close(diary)


def executions(folder: Path) -> list[UUID]:
    """The jobs that were started, once for each start."""
    diary = folder / "diary"
    lines = diary.read_text().splitlines() if diary.exists() else []
    return [UUID(line) for line in lines if len(line) == 36]  # the last line may be incomplete


@asynccontextmanager
async def fleet(store: Store, folder: Path, *, of: Dutiful = app, **settings: str) -> AsyncIterator[Fleet]:
    """Workers on the database of `store`, with the app opened on it; `settings` become DUTIFUL_* variables."""
    url = address(store)
    environment = {f"DUTIFUL_{name.upper()}": value for name, value in settings.items()}
    environment[DIARY] = str(folder / "diary")
    name = next(name for name, one in {"app": app, "ticking": ticking, "loading": loading}.items() if one is of)
    of.configure(database_url=url)
    async with (
        of,
        Fleet(f"fault_jobs:{name}", url, folder=folder, path=Path(__file__).parent, environment=environment) as started,
    ):
        yield started


def address(store: Store) -> str:
    return store.direct_dsn if isinstance(store, PostgresStore) else store.url


async def flood() -> None:
    """Enqueue as fast as possible, and print how many jobs were acknowledged."""
    while True:
        await inert.enqueue_many({} for _ in range(FLOOD))
        print(FLOOD, flush=True)


if __name__ == "__main__":
    asyncio.run(flood())
