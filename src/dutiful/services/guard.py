"""Finds the addresses that a webhook may be posted to, at the moment when it is posted.

A name can lead anywhere, and somewhere else each time that it is asked for: so it is asked for once, every address that
it has must be allowed, and what comes back is what is connected to.
"""

import asyncio
import socket
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address

from dutiful.core.endpoint import Address, Network, check_url, refusal, remedy
from dutiful.core.errors import UsageError
from dutiful.daemons import Daemons

# At once, and a few times as many as there are posts: a name server that does not answer keeps its thread for longer
# than a post may take.
LOOKUPS = 64


class Forbidden(Exception):
    """The receiver has an address or a URL that nothing may be posted to."""


class Unreachable(Exception):
    """There was no answer: nobody was there, or not in time, or it was not HTTP."""


class Guard:
    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks
        # Of our own: a name server that does not answer would fill the threads that everybody shares, and keep the
        # process from its end.
        self._threads = Daemons(LOOKUPS, "dutiful names")
        self._looking: dict[str, asyncio.Future[list[Address]]] = {}

    def check(self, url: str) -> str:
        """The URL in its one spelling; Forbidden if it is none that we post to: jobs inserted by SQL can have any."""
        try:
            return check_url(url, self._networks)
        except UsageError as error:
            raise Forbidden(str(error)) from None

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Where `host` is now; Forbidden if any of it is refused, Unreachable if it is nowhere."""
        try:
            found = [ip_address(host)]
        except ValueError:
            found = await self._look_up(host, port)
        if not found:
            raise Unreachable(f"{host} was not found: it has no address")
        for address in found:
            if reason := refusal(address, self._networks):
                raise Forbidden(f"{host} leads to a forbidden address: {reason}; {remedy(address)}")
        return found

    async def _look_up(self, host: str, port: int) -> list[Address]:
        """One look for all who wait for the same name: a name that is never found takes one thread, not all."""
        looking = self._looking.get(host)
        if looking is None:
            looking = asyncio.wrap_future(self._threads.submit(partial(_look_up, host, port)))
            self._looking[host] = looking
            looking.add_done_callback(partial(self._found, host))
        try:
            return await asyncio.shield(looking)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{host} was not found: {error}") from error

    def _found(self, host: str, looking: "asyncio.Future[list[Address]]") -> None:
        del self._looking[host]
        if not looking.cancelled():
            looking.exception()  # whoever waited may have gone

    def close(self) -> None:
        self._threads.close()


def _look_up(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(ip_address(str(place[0])) for *_, place in found))
