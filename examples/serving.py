"""Serves a web application in this process."""

import asyncio
import errno
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import uvicorn
from starlette.types import ASGIApp

from dutiful import UsageError

HOST = "127.0.0.1"
T = TypeVar("T")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the program handles Ctrl-C itself


@asynccontextmanager
async def serving(asgi: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """Yields its address; requests wait until it is up."""
    with listening(port) as listener:
        config = uvicorn.Config(asgi, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        server = _Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://{HOST}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


def listening(port: int) -> socket.socket:
    """At a port of this machine, or at a free one; UsageError if that one is taken."""
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        remedy = "end what uses it, or choose another port" if taken else "choose another port"
        raise UsageError(f"cannot listen on {HOST}:{port} ({_reason(error)}): {remedy}") from error


def _reason(error: OSError | OverflowError) -> str:
    """Without the address, which Python adds."""
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


async def ended_by_term(work: Awaitable[T]) -> T:
    """Lets TERM end the work as Ctrl-C does; by default it would end the program at once, and leave its workers behind.

    Not by way of Ctrl-C's own signal, because a program that a script started in the background ignores that.
    """
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def for_ever() -> None:
    """Waits for Ctrl-C."""
    try:
        await asyncio.Event().wait()
    finally:
        # The server would log an error for each page that is still connected.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
