"""Limits per client: failed logins by address, open streams by principal and tenant, and the size of a body."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from dutiful.core.errors import UsageError
from dutiful.core.principal import Principal
from dutiful.core.webhooks.endpoint import Network
from dutiful.web.problems import Problem

BURST, PER_SECOND = 20, 0.5
MOST_ADDRESSES = 10_000
BODY = 256 * 1024  # besides a payload
BODY_TIME = 10.0
STREAMS, TENANT_STREAMS, ALL_STREAMS = 100, 250, 500


class Failures:
    """Failed logins by address, each a leaky bucket.

    Beyond `most` addresses, the one that failed longest ago is dropped.
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
        """How many seconds the address is still refused; 0 if it is not."""
        return max(0.0, (self._level(address) + 1 - self._burst) / self._per_second)

    def add(self, address: str) -> None:
        self._levels[address] = (self._level(address) + 1, self._clock())
        self._levels.move_to_end(address)
        while len(self._levels) > self._most:
            self._levels.popitem(last=False)

    def _level(self, address: str) -> float:
        level, at = self._levels.get(address, (0.0, 0.0))
        return max(0.0, level - (self._clock() - at) * self._per_second)


class Streams:
    """Open streams, because each one costs memory and a connection.

    Not by address, except of readers who are nothing else: many tenants may have the same one.
    """

    def __init__(self, of_one: int = STREAMS, of_tenant: int = TENANT_STREAMS, in_all: int = ALL_STREAMS) -> None:
        self._of_one = of_one
        self._of_tenant = of_tenant
        self._in_all = in_all
        self._open: Counter[tuple[str, ...]] = Counter()

    def begin(self, principal: Principal | None, bucket: str) -> Callable[[], None]:
        """Counts a stream of the principal, or of the address if there is none; the result ends it."""
        limits: dict[tuple[str, ...], tuple[int, str]] = {}
        if principal is None:
            limits["address", bucket] = (self._of_one, "from your address")
        else:
            tenant = principal.tenant or ""
            limits["principal", tenant, principal.name] = (self._of_one, "in your name")
            if tenant:
                limits["tenant", tenant] = (self._of_tenant, "of your tenant")
        for key, (most, whose) in limits.items():
            if self._open[key] >= most:
                detail = f"{most} streams are open {whose}: close some, or follow several jobs in one"
                raise Problem(429, detail, headers={"retry-after": "15"})
        limits["all",] = (self._in_all, "at this server")
        if self._open["all",] >= self._in_all:
            raise Problem(503, "too many streams are open at this server; try again", headers={"retry-after": "15"})
        self._open.update(limits.keys())

        def end() -> None:
            self._open.subtract(limits.keys())
            for key in limits:
                if self._open[key] <= 0:
                    del self._open[key]

        return end


def read_networks(trusted: Sequence[str]) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(text) for text in trusted)
    except ValueError as error:
        raise UsageError(f"trusted_proxies: {error}; give addresses or networks, as in 10.0.0.0/8") from None


def address_of(request: HTTPConnection, trusted: tuple[Network, ...]) -> str:
    """The client's address; X-Forwarded-For counts only as far as trusted proxies have written it."""
    address = request.client.host if request.client is not None else "unknown"
    hops = [hop.strip() for line in request.headers.getlist("x-forwarded-for") for hop in line.split(",")]
    while hops and _in(address, trusted):
        if _parsed(hops[-1]) is None:
            break
        address = hops.pop()
    return str(_parsed(address) or address)


def bucket_of(address: str) -> str:
    """The key of limits: an address, or the /64 network of an IPv6 client, which has all of it."""
    parsed = _parsed(address)
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, 64), strict=False))
    return str(parsed or address)


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """The address; ::ffff:1.2.3.4, as which an IPv6 server sees IPv4 clients, is 1.2.3.4."""
    try:
        parsed = ip_address(text)
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, IPv6Address) else parsed


def _in(address: str, networks: tuple[Network, ...]) -> bool:
    parsed = _parsed(address)
    return parsed is not None and any(parsed in network for network in networks)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; Problem 413 as soon as it exceeds `limit` bytes, 408 if it takes too long."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIME):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise Problem(
            408, f"the body did not come within {BODY_TIME:g} seconds", headers={"connection": "close"}
        ) from None
    except ClientDisconnect:
        raise Problem(400, "the body is incomplete") from None
    return bytes(body)


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the body has more than {limit:,} bytes; send less")
