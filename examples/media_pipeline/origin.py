"""A fake origin server: files, a store for products, and a receiver of webhooks. Tests can make it fail."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from examples.media_pipeline.phases import digest

PIECE = 32 * 1024
TYPES = {"png": "image/png", "json": "application/json"}


@dataclass
class Origin:
    files: Mapping[str, bytes]
    secret: str  # with which webhooks are verified
    rate: float | None = None  # bytes a second, for each download
    products: dict[str, bytes] = field(default_factory=dict)
    gets: Counter[str] = field(default_factory=Counter)
    puts: Counter[str] = field(default_factory=Counter)
    messages: dict[str, dict[str, Any]] = field(default_factory=dict)  # webhooks that were verified, by their ids
    refused: int = 0  # webhooks whose signatures were wrong
    _faults: Counter[str] = field(default_factory=Counter)
    _held: dict[str, asyncio.Event] = field(default_factory=dict)

    # --- failures on demand

    def fail(self, path: str, times: int = 1) -> None:
        """Answers the next requests for this path, as in "products/dawn.png", with 503."""
        self._faults[path] += times

    def hold(self, path: str) -> None:
        """Delays requests for this path until it is released; the first half of a file is sent."""
        self._held[path] = asyncio.Event()

    def release(self, path: str) -> None:
        self._held.pop(path).set()

    def rotate(self, secret: str) -> None:
        """Accepts only webhooks that are signed with this secret from now on."""
        self.secret = secret

    # --- serving

    @property
    def asgi(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/files/{name}", self._get_file),
                Route("/products/{name}", self._put_product, methods=["PUT"]),
                Route("/products/{name}", self._get_product),
                Route("/hooks", self._receive, methods=["POST"]),
                Route("/hooks/gone", self._answer_gone, methods=["POST"]),
            ]
        )

    async def _get_file(self, request: Request) -> Response:
        name = request.path_params["name"]
        self.gets[name] += 1
        if self._faulty(f"files/{name}"):
            return Response(status_code=503)
        data = self.files.get(name)
        if data is None:
            return Response(status_code=404)
        promised = digest(hashlib.sha256(data).digest())
        headers = {"content-length": str(len(data)), "content-digest": promised}
        return StreamingResponse(self._pieces(name, data), headers=headers)

    async def _pieces(self, name: str, data: bytes) -> AsyncIterator[bytes]:
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            for start in range(0, len(part), PIECE):
                yield part[start : start + PIECE]
                if self.rate is not None:
                    await asyncio.sleep(PIECE / self.rate)
            await self._wait_released(f"files/{name}")

    async def _put_product(self, request: Request) -> Response:
        name, body = request.path_params["name"], await request.body()
        self.puts[name] += 1
        await self._wait_released(f"products/{name}")
        if await request.is_disconnected() or self._faulty(f"products/{name}"):
            return Response(status_code=503)  # without a receipt, the upload does not count
        arrived = digest(hashlib.sha256(body).digest())
        if request.headers["content-digest"] != arrived:
            return Response(status_code=400)
        self.products[name] = body
        return JSONResponse({"digest": arrived}, status_code=201)

    async def _get_product(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.products:
            return Response(status_code=404)
        return Response(self.products[name], media_type=TYPES[name.rpartition(".")[2]])

    async def _receive(self, request: Request) -> Response:
        """Stores messages by id, because one may arrive twice."""
        await self._wait_released("hooks")
        try:
            message = Webhook(self.secret).verify(await request.body(), dict(request.headers))
        except WebhookVerificationError:
            self.refused += 1
            return Response(status_code=401)
        self.messages[request.headers["webhook-id"]] = message
        return Response(status_code=204)

    async def _answer_gone(self, request: Request) -> Response:
        return Response(status_code=410)

    def _faulty(self, path: str) -> bool:
        faulty = self._faults[path] > 0
        self._faults[path] -= faulty
        return faulty

    async def _wait_released(self, path: str) -> None:
        if path in self._held:
            await self._held[path].wait()
