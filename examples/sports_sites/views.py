"""SQL views of the queue: `jobs`, `dead_letter_jobs`, `circuit_breakers` and others."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from dutiful import Dutiful

HERE = Path(__file__).parent / "views"
METRICS_DAYS = 90  # that metrics of deleted jobs are kept
SCHEMA = "sports"  # on Postgres; in a SQLite file, Dutiful's own tables have a prefix
JSON = ("payload", "original_job", "error_details")
Row = dict[str, Any]


class Views(Protocol):
    async def install(self, metrics_days: int = METRICS_DAYS) -> None:
        """Creates the views; idempotent. Metrics of jobs that were deleted stay for so many days."""

    async def rows(self, statement: str, *params: Any) -> list[Row]: ...


@asynccontextmanager
async def views(app: Dutiful, schema: str = SCHEMA) -> AsyncIterator[Views]:
    """Opens a separate connection to the app's database."""
    url, settings = app.settings.database_url, app.settings
    if url.startswith("postgres"):
        async with _postgres(url, settings.schema, schema) as opened:
            yield opened
    else:
        # The library that the app uses: two libraries in one process would drop each other's locks on the file.
        import apsw

        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            yield _Sqlite(connection)
        finally:
            connection.close()


class _Sqlite:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        connection.set_busy_timeout(30_000)

    async def install(self, metrics_days: int = METRICS_DAYS) -> None:
        with self._connection:
            self._connection.execute((HERE / "sqlite.sql").read_text().replace("{days}", str(metrics_days)))

    async def rows(self, statement: str, *params: Any) -> list[Row]:
        cursor = self._connection.execute(statement, params)
        found: list[Row] = []
        for row in cursor:
            named = dict(zip((column[0] for column in cursor.description), row, strict=True))
            found.append({k: json.loads(v) if k in JSON and v is not None else v for k, v in named.items()})
        return found


class _Postgres:
    def __init__(self, connection: Any, dutiful: str, schema: str) -> None:
        self._connection = connection
        self._names = {"{dutiful}": f'"{dutiful}"', "{views}": f'"{schema}"'}

    async def install(self, metrics_days: int = METRICS_DAYS) -> None:
        script = (HERE / "postgres.sql").read_text()
        for name, text in {**self._names, "{days}": str(metrics_days)}.items():
            script = script.replace(name, text)
        await self._connection.execute(script)

    async def rows(self, statement: str, *params: Any) -> list[Row]:
        return [dict(row) for row in await self._connection.fetch(statement, *params)]


@asynccontextmanager
async def _postgres(url: str, dutiful: str, schema: str) -> AsyncIterator[_Postgres]:
    import asyncpg  # on SQLite no driver is needed

    connection = await asyncpg.connect(url, server_settings={"search_path": schema})
    try:
        await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        yield _Postgres(connection, dutiful, schema)
    finally:
        await connection.close()
