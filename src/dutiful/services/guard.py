"""Finds the addresses that a webhook may be posted to, at the moment when it is posted.

A name can lead anywhere, and somewhere else each time that it is asked for: so it is asked for once, every address that
it has must be allowed, and what comes back is what is connected to.
"""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from dutiful.core.endpoint import Address, Network, check_url, refusal, remedy
from dutiful.core.errors import UsageError

LOOKUPS = 16  # at once


class Forbidden(Exception):
    """The receiver has an address or a URL that nothing may be posted to."""


class Unreachable(Exception):
    """There was no answer: nobody was there, or not in time, or it was not HTTP."""


class Guard:
    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks
        # Of our own: a name server that does not answer would fill the threads that everybody shares.
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="dutiful-names")

    def check(self, url: str) -> str:
        """The URL in its one spelling; Forbidden if it is none that we post to: jobs inserted by SQL can have any."""
        try:
            return check_url(url, self._networks)
        except UsageError as error:
            raise Forbidden(str(error)) from None

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Where `host` is now; Forbidden if any of it is refused, Unreachable if it is nowhere."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._threads, _look_up, host, port)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{host} was not found: {error}") from error
        if not found:
            raise Unreachable(f"{host} was not found: it has no address")
        for address in found:
            if reason := refusal(address, self._networks):
                raise Forbidden(f"{host} leads to a forbidden address: {reason}; {remedy(address)}")
        return found

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(ip_address(str(place[0])) for *_, place in found))
