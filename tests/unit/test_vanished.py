"""Peers that vanish: what the kernel is told of connections."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from dutiful.concurrency.vanished import notice_vanished


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_connection_that_has_just_ended_is_left_to_its_next_use(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def connect_and_lose() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.transport.abort()
        with pytest.raises((OSError, ValueError)):
            while True:  # until the loop has closed it
                writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                await asyncio.sleep(0)
        notice_vanished(writer.transport, 20)
        server.close()

    run(connect_and_lose())
