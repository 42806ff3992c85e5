"""The processes of jobs that are followed: `serve PORT`, `work RUNNING` or, in one, `both PORT LISTENERS RUNNING`."""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from benchmarks.peer import DEFAULT_LANE
from benchmarks.peers.dutiful_peer import make_app
from benchmarks.run_counter import RunCounter
from dutiful import Dutiful
from dutiful.web import EventsEndpoint
from dutiful.web.endpoint import Message, Receive, Send

LASTING = "lasting"


def followed_app(url: str, counter: RunCounter | None = None, running: int = 1) -> Dutiful:
    """The jobs of a drain, and in slots of their own some that run during the whole drain."""
    lanes = f"general=5:{DEFAULT_LANE.queue}; lasting={running}:{LASTING}"
    app = make_app(url, counter, (DEFAULT_LANE.kind,), lanes=lanes)

    @app.job(name=LASTING, queue=LASTING)
    async def last() -> None:
        await asyncio.Event().wait()

    return app


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    match sys.argv[5:]:
        case ["serve", port]:
            async with followed_app(url) as app:
                await _serve(app, int(port))
        case ["work", running]:
            await _work(followed_app(url, counter, int(running)))
        case ["both", port, listeners, running]:
            async with followed_app(url, counter, int(running)) as app, asyncio.TaskGroup() as group:
                answered = asyncio.Semaphore(0)
                group.create_task(_serve(app, int(port), answered))
                # The drain with readers is measured, not their connecting.
                for _ in range(int(listeners)):
                    await answered.acquire()
                group.create_task(_work(app))
        case options:
            raise SystemExit(f"unknown options: {options}")


async def _work(app: Dutiful) -> None:
    async with app.embedded():
        await asyncio.Event().wait()


async def _serve(app: Dutiful, port: int, answered: asyncio.Semaphore | None = None) -> None:
    endpoint = EventsEndpoint(app)

    async def serve(scope: Message, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            await send(message)
            if answered is not None and message["type"] == "http.response.start":
                answered.release()

        await endpoint(scope, receive, pass_on)

    config = uvicorn.Config(serve, host="127.0.0.1", port=port, lifespan="off", access_log=False, log_level="error")
    await uvicorn.Server(config).serve()
