"""Services that can be made to fail, and jobs that call them under a breaker."""

import asyncio
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from dutiful import Context, Dutiful, Fixed, Retry
from dutiful.client.client import Client
from dutiful.core.breaker.state import Breaker
from dutiful.declare.breaker import BreakerSpec

ONCE = Retry(max_attempts=1)


class Service:
    """Records its calls, and fails while `failing` is set."""

    def __init__(self, *, failing: bool = False) -> None:
        self.failing = failing
        self.calls: list[int] = []

    def call(self, n: int = 0) -> None:
        self.calls.append(n)
        if self.failing:
            raise ConnectionError("the service is down")


async def breaker_of(client: Client, name: str) -> Breaker:
    return next(one.breaker for one in await client.store.breakers.all() if one.breaker.name == name)


def styles(app: Dutiful, service: Service, breaker: BreakerSpec) -> dict[str, Any]:
    """The same call under the same breaker, in every style of code."""

    @app.job(retry=ONCE)
    async def block(ctx: Context) -> None:
        async with ctx.breaker(breaker.name):
            service.call()

    @app.job(retry=ONCE)
    def thread(ctx: Context) -> None:
        with ctx.breaker(breaker.name):
            service.call()

    @breaker
    async def call() -> None:
        service.call()

    @breaker
    def call_blocking() -> None:
        service.call()

    @app.job(retry=ONCE)
    async def decorated() -> None:
        await call()

    @app.job(retry=ONCE)
    def decorated_thread() -> None:
        call_blocking()

    return {"block": block, "thread": thread, "decorated": decorated, "decorated thread": decorated_thread}


def declare_kinds(app: Dutiful) -> None:
    """Kinds under the breaker "printer", one for each place where handlers run, and named after it."""

    @app.job(breaker="printer", retry=ONCE)
    async def loop() -> None:
        print_page()

    @app.job(breaker="printer", retry=ONCE)
    def thread() -> None:
        print_page()

    pipeline = app.pipeline("pipeline", breaker="printer", retry=ONCE)

    @pipeline.phase
    async def page() -> None:
        print_page()

    app.kinds["process"] = process_app.kinds["process"]  # found in the process by its module


def print_page() -> None:
    note("page")
    if Path(os.environ["BREAKER_FAILING"]).exists():
        raise ConnectionError("the printer is on fire")


process_app = Dutiful("sqlite:///nowhere.db")
app = Dutiful()
LATER = Retry(max_attempts=9, backoff=Fixed("1h"))
grid = app.breaker("grid", failures=3, open_for="1h", probes=2)


@app.job(retry=LATER)
async def call(ctx: Context) -> None:
    async with ctx.breaker("grid"):
        await visit()


@app.job(retry=LATER, breaker=grid)
async def analyse() -> None:
    await visit()


async def visit() -> None:
    """Call the grid, which is "up" or "down", or "held" until it is one of them."""
    note("call")
    while grid_is("held"):  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(0.01)
    if grid_is("down"):
        raise ConnectionError("the grid is down")


def note(line: str) -> None:
    """Short enough to be appended in one piece."""
    diary = os.open(os.environ["BREAKER_DIARY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(diary, f"{line}\n".encode())
    os.close(diary)


def grid_is(state: str) -> bool:
    return Path(os.environ["BREAKER_GRID"]).read_text() == state


@process_app.job(breaker="printer", retry=ONCE, process=True)
def process() -> None:
    print_page()
    while Path(os.environ.get("BREAKER_HELD", "nowhere")).exists():
        time.sleep(0.01)


printer = process_app.breaker("printer")


@printer
def feed() -> str:
    return "fed"


@process_app.job(breaker=printer, retry=ONCE, process=True)
def feed_declared() -> str:
    return feed()


@process_app.job(retry=ONCE, process=True)
def feed_undeclared() -> str:
    return feed()


def import_slowly() -> None:
    """In a job's process, wait during the import until the test ends the wait."""
    imported = os.environ.get("BREAKER_IMPORTED")
    if imported is not None and multiprocessing.current_process().name == "dutiful job":
        note("importing")
        while not Path(imported).exists():
            time.sleep(0.01)


import_slowly()
