"""Serves a web application in this process."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from dutiful import UsageError

HOST = "127.0.0.1"


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the program handles Ctrl-C itself


@asynccontextmanager
async def serving(asgi: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """Yields its address; requests wait until it is up."""
    with _listener(port) as listener:
        config = uvicorn.Config(asgi, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        server = _Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://{HOST}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = f"cannot listen on {HOST}:{port} ({error.strerror})"
        raise UsageError(f"{reason}: end what uses it, or choose another port") from error


async def for_ever() -> None:
    """Waits for Ctrl-C."""
    try:
        await asyncio.Event().wait()
    finally:
        # The server would log an error for each page that is still connected.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
