"""API tokens in SQLite; only hashes of their secrets are stored."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from dutiful.store.tokens import ApiToken
from dutiful.stores.sqlite.engine import SQL, Subject
from dutiful.stores.sqlite.engine.codec import clock
from dutiful.stores.sqlite.engine.columns import TOKEN


class SqliteTokens(Subject):
    async def put(self, token: ApiToken, hash: str) -> None:
        await self._engine.write(lambda db: db.run(SQL["put_token"], (*TOKEN.encode(token), hash)))

    async def find(self, hash: str) -> ApiToken | None:
        row = await self._engine.read(lambda db: db.row(SQL["find_token"], (hash,)))
        return None if row is None else TOKEN.decode(row)

    async def all(self) -> list[ApiToken]:
        return [TOKEN.decode(row) for row in await self._engine.read(lambda db: db.rows(SQL["tokens"]))]

    async def revoke(self, token_id: UUID, *, now: datetime | None = None) -> bool:
        return await self._engine.write(lambda db: db.change(SQL["revoke_token"], (token_id.bytes, clock(now))) > 0)

    async def touch(self, token_ids: Sequence[UUID], *, now: datetime | None = None) -> None:
        if token_ids:
            await self._engine.write(
                lambda db: db.many(SQL["touch_token"], [(token_id.bytes, clock(now)) for token_id in token_ids])
            )
