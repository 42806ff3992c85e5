"""The edge as an organization's jobs reach it: over HTTP, with that organization's token."""

from typing import Any
from urllib.parse import quote

import httpx2

from examples.docverse.ports import Pointer


class EdgeError(Exception):
    """The edge did not do what it was asked; the job is tried again."""


class EdgeClient:
    """Implements ports.Edge."""

    def __init__(self, http: httpx2.AsyncClient, url: str, org: str, token: str) -> None:
        self._http = http
        self._url = url
        self._org = org
        self._headers = {"authorization": f"Bearer {token}"}

    async def point(self, key: str, pointer: Pointer, fence: int) -> bool:
        return await self._write(key, {"build": pointer.build, "prefix": pointer.prefix, "fence": fence})

    async def unpoint(self, key: str, fence: int) -> bool:
        return await self._write(key, {"build": None, "prefix": None, "fence": fence})

    async def purge(self, path: str) -> None:
        await self._send("POST", f"_purge/{quote(self._org)}/{quote(path)}")

    async def _write(self, key: str, value: dict[str, Any]) -> bool:
        """`key` is `org/project/slug.json`; its ending is not in the URL."""
        answer = await self._send("PUT", f"_kv/{quote(key.removesuffix('.json'))}", value, allowed=(409,))
        return answer.status_code != 409

    async def _send(
        self, method: str, path: str, body: object = None, allowed: tuple[int, ...] = ()
    ) -> httpx2.Response:
        try:
            answer = await self._http.request(method, f"{self._url}/{path}", json=body, headers=self._headers)
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            raise EdgeError(f"the edge did not answer {method} /{path}: {reason}") from error
        if answer.status_code >= 400 and answer.status_code not in allowed:
            raise EdgeError(f"the edge answered {method} /{path} with {answer.status_code}: {answer.text[:200]}")
        return answer
