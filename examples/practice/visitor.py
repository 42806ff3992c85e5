"""One who calls the admin API, with a token of their own or without."""

from typing import Any

import httpx2

from dutiful import Dutiful, Role

BASE = "/api/jobs/admin"


class Visitor:
    def __init__(self, http: httpx2.AsyncClient, secret: str | None = None) -> None:
        self._http = http
        self._headers = {} if secret is None else {"authorization": f"Bearer {secret}"}

    async def get(self, path: str, **params: Any) -> httpx2.Response:
        return await self._http.get(BASE + path, params=params, headers=self._headers)

    async def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        return await self._http.post(BASE + path, json=body, headers=self._headers)


async def token(app: Dutiful, name: str, role: Role, firm_id: int) -> str:
    """Given out by the platform's administrator; its secret is told this once."""
    _, secret = await (await app.operator("platform")).create_token(name, role, str(firm_id))
    return secret


async def revoke_tokens(app: Dutiful, firm_id: int) -> None:
    """All of a firm that leaves: nobody of it comes in any more."""
    platform = await app.operator("platform")
    for found in await platform.tokens():
        if found.tenant == str(firm_id):
            await platform.revoke_token(found.id, "the firm has left")
