"""Resolves and checks the address of a webhook at the moment when it is posted.

A name can resolve to any address, and to another one each time. So it is resolved once, every address must be allowed,
and the connection uses these addresses.
"""

import asyncio
import socket
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address

from dutiful.concurrency.daemon_pool import DaemonPool
from dutiful.core.errors import UsageError
from dutiful.core.webhooks.endpoint import Address, Network, check_url, refusal, remedy

# A few times as many as posts in flight: a name server that does not answer blocks its thread for longer than a post.
MAX_LOOKUPS = 64


class Forbidden(Exception):
    """The receiver has an address or a URL that nothing may be posted to."""


class Unreachable(Exception):
    """There was no answer, or not in time, or it was not HTTP."""


class AddressGuard:
    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks
        # Its own threads, because a name server that does not answer would fill the loop's default pool, and keep the
        # process from exiting.
        self._threads = DaemonPool(MAX_LOOKUPS, "dutiful names")
        self._lookups: dict[str, asyncio.Future[list[Address]]] = {}

    def check(self, url: str) -> str:
        """Returns the normalised URL; raises Forbidden, because jobs inserted by SQL can have any URL."""
        try:
            return check_url(url, self._networks)
        except UsageError as error:
            raise Forbidden(str(error)) from None

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Resolves `host`; raises Forbidden if any address is refused, Unreachable if there is none."""
        try:
            found = [ip_address(host)]
        except ValueError:
            found = await self._resolve(host, port)
        if not found:
            raise Unreachable(f"{host} was not found: it has no address")
        for address in found:
            if reason := refusal(address, self._networks):
                raise Forbidden(f"{host} leads to a forbidden address: {reason}; {remedy(address)}")
        return found

    async def _resolve(self, host: str, port: int) -> list[Address]:
        """Shares one lookup among all posts to a name, so that a name server that hangs blocks one thread, not all."""
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = asyncio.wrap_future(self._threads.submit(partial(_resolve, host, port)))
            self._lookups[host] = lookup
            lookup.add_done_callback(partial(self._resolved, host))
        try:
            return await asyncio.shield(lookup)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{host} was not found: {error}") from error

    def _resolved(self, host: str, lookup: "asyncio.Future[list[Address]]") -> None:
        del self._lookups[host]
        if not lookup.cancelled():
            lookup.exception()  # marks it as retrieved, because the callers may have been cancelled

    def close(self) -> None:
        self._threads.close()


def _resolve(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(ip_address(str(place[0])) for *_, place in found))
