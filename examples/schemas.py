"""Places on Postgres: a story keeps its jobs in one of its own, for its unique keys are taken for good."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from dutiful import UsageError


async def connect(database_url: str) -> Any:
    """A connection of asyncpg; whatever keeps it away is a sentence."""
    import asyncpg  # on SQLite no driver is needed

    try:
        return await asyncpg.connect(database_url)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        why = str(error) or type(error).__name__
        raise UsageError(f"no database answers at that address ({why}); check it, and that the server runs") from error


@asynccontextmanager
async def own_schema(database_url: str, name: str) -> AsyncIterator[str | None]:
    """On Postgres, the name of a new schema that is dropped in the end; a SQLite file needs none."""
    if not database_url.startswith("postgres"):
        yield None
        return
    connection = await connect(database_url)
    schema = f"{name}_{uuid4().hex[:8]}"
    try:
        yield schema
    finally:
        try:
            await connection.execute(f"drop schema if exists {schema} cascade")
        finally:
            await connection.close()
