"""A client of the admin API, with or without a token."""

from typing import Any

import httpx2

from dutiful import Dutiful, Role

BASE = "/api/jobs/admin"


class ApiClient:
    def __init__(self, http: httpx2.AsyncClient, secret: str | None = None) -> None:
        self._http = http
        self._headers = {} if secret is None else {"authorization": f"Bearer {secret}"}

    async def get(self, path: str, **params: Any) -> httpx2.Response:
        return await self._http.get(BASE + path, params=params, headers=self._headers)

    async def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        return await self._http.post(BASE + path, json=body, headers=self._headers)


async def token(app: Dutiful, name: str, role: Role, firm_id: int) -> str:
    """Creates a token of the platform's administrator, and returns its secret."""
    _, secret = await (await app.operator("platform")).tokens.create(name, role, str(firm_id))
    return secret


async def revoke_tokens(app: Dutiful, firm_id: int) -> None:
    """Revokes all tokens of a firm that leaves."""
    platform = await app.operator("platform")
    for found in await platform.tokens.all():
        if found.tenant == str(firm_id):
            await platform.tokens.revoke(found.id, "the firm has left")
