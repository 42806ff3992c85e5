"""One POST to one untrusted receiver.

A transport of httpx2 is used without its client, so there are no redirects, proxies, cookies or credentials from the
environment to switch off. Each POST has a connection of its own, to an address that the guard has allowed; the name is
used for TLS and the Host header only, and is not resolved again.
"""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from urllib.parse import SplitResult, urlsplit

import httpx2

from dutiful.core.webhooks.endpoint import PORTS, Address
from dutiful.core.webhooks.message import WebhookResponse
from dutiful.maintenance.webhooks.address_guard import AddressGuard, Unreachable

READ_LIMIT = 16 * 1024
CONNECT_SHARE = 0.4  # of the timeout; then the next address of the receiver is tried


class WebhookHttp:
    def __init__(self, guard: AddressGuard, timeout: float, context: ssl.SSLContext | None = None) -> None:
        """Slow: reads the certificates that the system trusts, unless a `context` is given."""
        self._guard = guard
        self._timeout = timeout
        self._context = context or httpx2.create_ssl_context()

    def close(self) -> None:
        self._guard.close()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookResponse:
        """Ends within the timeout; raises Unreachable, or Forbidden by the guard, without an answer."""
        # One timeout for all: a receiver that sends a byte a second would never exceed a timeout for each read.
        until = asyncio.get_running_loop().time() + self._timeout
        parts = urlsplit(self._guard.check(url))
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout_at(until):
                    response = await self._respond(stack, parts, headers, body)
            except TimeoutError:
                raise Unreachable(f"no answer within {self._timeout:g} s") from None
            except (OSError, httpx2.TransportError) as error:
                raise Unreachable(f"{type(error).__name__}: {error}") from error
            return WebhookResponse(
                response.status_code, await _first_bytes(response, until), response.headers.get("retry-after")
            )

    async def _respond(
        self, stack: AsyncExitStack, url: SplitResult, headers: Mapping[str, str], body: bytes
    ) -> httpx2.Response:
        assert url.hostname is not None
        port = url.port or PORTS[url.scheme]
        transport = await stack.enter_async_context(httpx2.AsyncHTTPTransport(verify=self._context, trust_env=False))
        *others, last = await self._guard.addresses(url.hostname, port)
        for address in others:
            with suppress(httpx2.ConnectError, httpx2.ConnectTimeout):  # nothing was sent, so nothing is received twice
                return await self._send(transport, stack, self._request(url, address, port, headers, body))
        return await self._send(transport, stack, self._request(url, last, port, headers, body))

    async def _send(
        self, transport: httpx2.AsyncHTTPTransport, stack: AsyncExitStack, request: httpx2.Request
    ) -> httpx2.Response:
        response = await transport.handle_async_request(request)
        stack.push_async_callback(response.aclose)
        return response

    def _request(
        self, url: SplitResult, address: Address, port: int, headers: Mapping[str, str], body: bytes
    ) -> httpx2.Request:
        host = f"[{address}]" if address.version == 6 else str(address)
        query = f"?{url.query}" if url.query else ""
        return httpx2.Request(
            "POST",
            f"{url.scheme}://{host}:{port}{url.path}{query}",
            headers={**headers, "host": url.netloc, "connection": "close"},
            content=body,
            # The certificate is checked against the name.
            extensions={"sni_hostname": url.hostname, "timeout": {"connect": self._timeout * CONNECT_SHARE}},
        )


async def _first_bytes(response: httpx2.Response, until: float) -> bytes:
    """Reads raw bytes, because a small body may expand without end; the status counts even if the body never ends."""
    read = bytearray()
    with suppress(TimeoutError, OSError, httpx2.TransportError):
        async with asyncio.timeout_at(until), aclosing(response.aiter_raw()) as parts:
            async for part in parts:
                read += part
                if len(read) >= READ_LIMIT:
                    break
    return bytes(read[:READ_LIMIT])
