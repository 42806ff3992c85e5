"""What one client may cost: failed log-ins by address, and the size of a body."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from dutiful.core.endpoint import Network
from dutiful.core.errors import UsageError
from dutiful.web.problems import Problem

BURST, PER_SECOND = 20, 0.5
MOST_ADDRESSES = 10_000
BODY = 256 * 1024  # besides a payload


class Failures:
    """Failed log-ins by address: a bucket each, that fills as they fail and leaks with time.

    Bounded: beyond `most` addresses, the one that failed longest ago is forgotten.
    """

    def __init__(
        self,
        burst: int = BURST,
        per_second: float = PER_SECOND,
        *,
        most: int = MOST_ADDRESSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._per_second = per_second
        self._most = most
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def wait(self, address: str) -> float:
        """For how many seconds its failures are not even looked at; 0 if they are."""
        return max(0.0, (self._level(address) + 1 - self._burst) / self._per_second)

    def add(self, address: str) -> None:
        self._levels[address] = (self._level(address) + 1, self._clock())
        self._levels.move_to_end(address)
        while len(self._levels) > self._most:
            self._levels.popitem(last=False)

    def _level(self, address: str) -> float:
        level, at = self._levels.get(address, (0.0, 0.0))
        return max(0.0, level - (self._clock() - at) * self._per_second)


def read_networks(trusted: Sequence[str]) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(text) for text in trusted)
    except ValueError as error:
        raise UsageError(f"trusted_proxies: {error}; give addresses or networks, as in 10.0.0.0/8") from None


def address_of(request: HTTPConnection, trusted: tuple[Network, ...]) -> str:
    """Whom a request comes from; what X-Forwarded-For says counts only as far as trusted proxies have written it."""
    address = request.client.host if request.client is not None else "unknown"
    hops = [hop.strip() for line in request.headers.getlist("x-forwarded-for") for hop in line.split(",")]
    while hops and _in(address, trusted):
        if not _is_address(hops[-1]):
            break
        address = hops.pop()
    return address


def bucket_of(address: str) -> str:
    """An IPv6 client has a whole /64 to itself, so that is what counts as one."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, 64), strict=False))
    return address


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _in(address: str, networks: tuple[Network, ...]) -> bool:
    return _is_address(address) and any(ip_address(address) in network for network in networks)


async def read_body(request: Request, limit: int) -> bytes:
    """All of it, or Problem 413 as soon as it is known to be more than `limit` bytes."""
    told = request.headers.get("content-length", "")
    if told.isascii() and told.isdigit() and int(told[:20]) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise Problem(400, "the body ended before its end") from None
    return bytes(body)


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the body has more than {limit:,} bytes; send less")
