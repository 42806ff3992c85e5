"""Temporary Postgres schemas: each run uses its own, because unique keys can be permanent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from dutiful import UsageError


async def connect(database_url: str) -> Any:
    """Connects with asyncpg; UsageError if that fails."""
    import asyncpg  # on SQLite no driver is needed

    try:
        return await asyncpg.connect(database_url)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        why = str(error) or type(error).__name__
        raise UsageError(
            f"cannot connect to the database ({why}); check the address, and that the server runs"
        ) from error


@asynccontextmanager
async def own_schema(database_url: str, name: str) -> AsyncIterator[str | None]:
    """Yields the name of a new schema, which is dropped at the end; None on SQLite."""
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
