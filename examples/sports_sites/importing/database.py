"""The database of the old queues and the new one, so that one transaction changes both."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from dutiful import Dutiful, UsageError
from examples.schemas import connect
from examples.statements import load

STATEMENTS = load(Path(__file__).parent / "statements" / "importing.sql")
Row = dict[str, Any]


class Database(Protocol):
    @property
    def connection(self) -> Any:
        """The driver's connection, for `within`."""
        ...

    async def run(self, name: str, *params: Any) -> list[Row]: ...

    async def tables(self) -> set[str]: ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Holds the lock of imported_rows: another import waits."""
        ...

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Within a transaction: only what fails here is rolled back."""
        ...


@asynccontextmanager
async def database(app: Dutiful) -> AsyncIterator[Database]:
    url = app.settings.database_url
    if url.startswith("postgres"):
        connection = await connect(url)
        try:
            yield _Postgres(connection)
        finally:
            await connection.close()
    else:
        import apsw  # the library that the app uses

        path = url.removeprefix("sqlite:///")
        try:
            # Not created: without a file, there are no old queues.
            file = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        except apsw.CantOpenError:
            raise UsageError(f"there is no database {path}: the old queues have to be in it") from None
        file.set_busy_timeout(30_000)
        try:
            yield _Sqlite(file)
        finally:
            file.close()


class _Postgres:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def run(self, name: str, *params: Any) -> list[Row]:
        return [dict(row) for row in await self.connection.fetch(STATEMENTS[name], *params)]

    async def tables(self) -> set[str]:
        return {row["name"] for row in await self.run("postgres_tables")}

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.connection.transaction():
            await self.connection.execute(STATEMENTS["lock_imported_rows"])
            yield

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with self.connection.transaction():
            yield


class _Sqlite:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def run(self, name: str, *params: Any) -> list[Row]:
        cursor = self.connection.execute(STATEMENTS[name], params)
        return [dict(zip((column[0] for column in cursor.description), row, strict=True)) for row in cursor]

    async def tables(self) -> set[str]:
        return {row["name"] for row in await self.run("sqlite_tables")}

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        with self.connection:
            yield
