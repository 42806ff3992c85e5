"""The process that serves the API: it starts before its database if need be, and stops in order."""

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from dutiful.app import Dutiful
from dutiful.core.errors import DutifulError
from dutiful.core.sensitive import redact
from dutiful.web.app import create_app

log = logging.getLogger("dutiful.web")
GRACE = 10


async def serve(app: Dutiful, host: str, port: int, **options: Any) -> None:
    """Until TERM or INT; `options` are those of create_app."""
    config = uvicorn.Config(
        create_app(app, **options),
        host=host,
        port=port,
        log_config=None,
        proxy_headers=False,  # who is trusted with addresses, create_app is told
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    logging.getLogger("uvicorn.access").addFilter(_NoSecrets())
    server = Server(config, app)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    await server.serve()
    log.info("server stopped")


class _NoSecrets(logging.Filter):
    """Somebody may paste a token into an address, and addresses are logged."""

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
        """Signals are heeded by us: uvicorn would end the process by the very signal that it has heeded."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # It waits for requests to end, and a stream of events would not.
        await asyncio.gather(super().shutdown(sockets), self._end_streams())

    async def _end_streams(self) -> None:
        """Their readers come back, to whoever serves then."""
        try:
            await (await self._app.client()).watcher.close()
        except DutifulError as error:
            log.warning("the streams of events could not be ended in order: %s", error)
