"""API tokens in Postgres."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from dutiful.store.tokens import ApiToken
from dutiful.stores.postgres.engine.subject import Subject, as_struct


class PostgresTokens(Subject):
    async def put(self, token: ApiToken, hash: str) -> None:
        await self._db.fetch(self._sql["put_token"], hash, *msgspec.structs.astuple(token))

    async def find(self, hash: str) -> ApiToken | None:
        rows = await self._db.fetch(self._sql["find_token"], hash)
        return as_struct(ApiToken, rows[0]) if rows else None

    async def all(self) -> list[ApiToken]:
        return [as_struct(ApiToken, row) for row in await self._db.fetch(self._sql["tokens"])]

    async def revoke(self, token_id: UUID, *, now: datetime | None = None) -> bool:
        return bool(await self._db.fetch(self._sql["revoke_token"], token_id, now, repeat=False))

    async def touch(self, token_ids: Sequence[UUID], *, now: datetime | None = None) -> None:
        await self._db.fetch(self._sql["touch_tokens"], token_ids, now)
