"""Where a story keeps its jobs on Postgres: a place of its own, for its unique keys are taken for good."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from dutiful import UsageError


@asynccontextmanager
async def own_schema(database_url: str, name: str) -> AsyncIterator[str | None]:
    """On Postgres, the name of a new schema that is dropped in the end; a SQLite file needs none."""
    if not database_url.startswith("postgres"):
        yield None
        return
    import asyncpg  # a story on SQLite needs no driver

    try:
        connection = await asyncpg.connect(database_url)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        why = str(error) or type(error).__name__
        raise UsageError(f"--database-url: no database answers there ({why}); check the address") from error
    schema = f"{name}_{uuid4().hex[:8]}"
    try:
        yield schema
    finally:
        try:
            await connection.execute(f"drop schema if exists {schema} cascade")
        finally:
            await connection.close()
