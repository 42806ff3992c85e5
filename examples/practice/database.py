"""Where a story keeps its jobs: a place of its own, for its idempotency keys are taken for good."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4


@asynccontextmanager
async def own_schema(database_url: str) -> AsyncIterator[str | None]:
    """On Postgres, a new schema that is dropped in the end; a SQLite file needs none."""
    if not database_url.startswith("postgres"):
        yield None
        return
    import asyncpg  # the story on SQLite needs no driver

    schema = f"practice_{uuid4().hex[:8]}"
    try:
        yield schema
    finally:
        connection = await asyncpg.connect(database_url)
        try:
            await connection.execute(f"drop schema if exists {schema} cascade")
        finally:
            await connection.close()
