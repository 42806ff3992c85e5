"""Serves the API with uvicorn; it can start before its database, and shuts down gracefully."""

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from dutiful.app import Dutiful
from dutiful.core.errors import DutifulError, UsageError
from dutiful.core.redaction.redact import redact
from dutiful.web.app import create_app
from dutiful.web.connections import Connection

log = logging.getLogger("dutiful.web")
GRACE = 10
ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def serve(app: Dutiful, host: str, port: int, **options: Any) -> None:
    """Serves until TERM or INT; `options` are those of create_app."""
    config = uvicorn.Config(
        create_app(app, **options),
        host=host,
        port=port,
        http=Connection,
        ws="none",
        log_config=None,
        proxy_headers=False,  # create_app gets the trusted proxies
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    logging.getLogger("uvicorn.access").addFilter(_NoSecrets())
    server = Server(config, app)
    loop = asyncio.get_running_loop()
    sockets = await loop.run_in_executor(None, bound, host, port)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    await server.serve(sockets)
    log.info("server stopped")


def bound(host: str, port: int) -> list[socket.socket]:
    """Binds every address of `host` before anything else starts; uvicorn would fail only at the end."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host}: there is no such address ({error})") from error
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            sockets.append(_bound(socket.socket(family, kind, protocol), address))
        except OSError as error:
            if error.errno not in ABSENT:
                for one in sockets:
                    one.close()
                raise _refused(host, port, error) from error
            absent = error  # localhost may include ::1 where IPv6 is off: the other addresses are enough
    if not sockets and absent is not None:
        raise _refused(host, port, absent) from absent
    return sockets


def _bound(one: socket.socket, address: Any) -> socket.socket:
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if one.family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one


def _refused(host: str, port: int, error: OSError) -> DutifulError:
    match error.errno:
        case errno.EADDRINUSE:
            return DutifulError(
                f"port {port} on {host} is in use: stop the process that listens there, or give another --port"
            )
        case errno.EACCES:
            return UsageError(f"this user may not listen on port {port}: give another --port, 1024 or above")
        case _:
            return UsageError(f"--host {host}: this machine cannot listen there ({error.strerror})")


class _NoSecrets(logging.Filter):
    """Redacts tokens that were pasted into a path, because paths are logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(redact(one) if isinstance(one, str) else one for one in record.args)
        return True


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: Dutiful) -> None:
        super().__init__(config)
        self._app = app

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled by `serve`, because uvicorn would raise them again at the end."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and self.started:
            self._log_started_message(sockets)  # uvicorn does not log sockets that it did not make

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # It waits for requests to end, but a stream of events does not end by itself.
        await asyncio.gather(super().shutdown(sockets), self._end_streams())

    async def _end_streams(self) -> None:
        """Ends streams of events; their readers reconnect to another server."""
        try:
            await (await self._app.client()).watcher.close()
        except DutifulError as error:
            log.warning("the streams of events could not be ended: %s", error)
