"""Peers that vanish without a word: their host lost its power, or a firewall forgot the connection."""

import asyncio
import socket
from contextlib import suppress


def notice_vanished(transport: asyncio.BaseTransport, seconds: int) -> None:
    """Has the kernel ask a peer that is silent for so long, and end the connection if it acknowledges nothing."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    options = {
        "TCP_KEEPIDLE": seconds,
        "TCP_KEEPINTVL": seconds // 4,
        "TCP_KEEPCNT": 4,
        "TCP_USER_TIMEOUT": seconds * 1000,
    }
    # It may have ended by now, which its next use tells in a better way; uvloop says it with a ValueError.
    with suppress(OSError, ValueError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):  # as far as this system has them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
