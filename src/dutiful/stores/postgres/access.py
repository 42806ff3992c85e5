"""API tokens in Postgres."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from dutiful.access import ApiToken
from dutiful.core.principal import Role
from dutiful.stores.postgres.part import PostgresPart


class PostgresAccess(PostgresPart):
    async def put_token(self, token: ApiToken, hash: str) -> None:
        await self._db.fetch(
            self._sql["put_token"],
            token.id,
            token.created_at,
            token.expires_at,
            token.revoked_at,
            token.last_used_at,
            hash,
            token.name,
            token.role.value,
            token.created_by,
            token.tenant,
        )

    async def token_of(self, hash: str) -> ApiToken | None:
        rows = await self._db.fetch(self._sql["token_of"], hash)
        return _token(**dict(rows[0])) if rows else None

    async def tokens(self) -> list[ApiToken]:
        return [_token(**dict(row)) for row in await self._db.fetch(self._sql["tokens"])]

    async def revoke_token(self, token_id: UUID, *, now: datetime | None = None) -> bool:
        return bool(await self._db.fetch(self._sql["revoke_token"], token_id, now, repeat=False))

    async def touch_tokens(self, token_ids: Sequence[UUID], *, now: datetime | None = None) -> None:
        await self._db.fetch(self._sql["touch_tokens"], token_ids, now)


def _token(role: str, **fields: Any) -> ApiToken:
    return ApiToken(**fields, role=Role(role))
