"""The host's own tables, reached by named statements."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import asyncpg

from examples.statements import load

FOLDER = Path(__file__).parent
STATEMENTS = {name: text for file in (FOLDER / "statements").glob("*.sql") for name, text in load(file).items()}
POOL = 10
Row = Any  # asyncpg's record


class Database:
    """A pool, or one connection of it in a transaction."""

    def __init__(self, source: Any) -> None:
        self.source = source

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str) -> AsyncIterator[Self]:
        async with asyncpg.create_pool(url, min_size=0, max_size=POOL, init=_set_codecs) as pool:
            yield cls(pool)

    async def one(self, name: str, *args: Any) -> Row | None:
        return await self.source.fetchrow(STATEMENTS[name], *args)

    async def all(self, name: str, *args: Any) -> list[Row]:
        found: list[Row] = await self.source.fetch(STATEMENTS[name], *args)
        return found

    async def value(self, name: str, *args: Any) -> Any:
        return await self.source.fetchval(STATEMENTS[name], *args)

    async def run(self, name: str, *args: Any) -> None:
        await self.source.execute(STATEMENTS[name], *args)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Database"]:
        async with self.source.acquire() as connection, connection.transaction():
            yield Database(connection)


async def _set_codecs(connection: Any) -> None:
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
