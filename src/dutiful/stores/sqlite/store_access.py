"""The store's face to those who hand out tokens, and check them."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from dutiful.access import ApiToken
from dutiful.stores.sqlite import access
from dutiful.stores.sqlite.threads import Threaded


class SqliteAccess(Threaded):
    async def put_token(self, token: ApiToken, hash: str) -> None:
        await self._write(lambda db: access.put(db, token, hash))

    async def token_of(self, hash: str) -> ApiToken | None:
        return await self._read(lambda db: access.token_of(db, hash))

    async def tokens(self) -> list[ApiToken]:
        return await self._read(access.tokens)

    async def revoke_token(self, token_id: UUID, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: access.revoke(db, token_id, self._clock(now)))

    async def touch_tokens(self, token_ids: Sequence[UUID], *, now: datetime | None = None) -> None:
        if token_ids:
            await self._write(lambda db: access.touch(db, token_ids, self._clock(now)))
