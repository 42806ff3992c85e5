"""The Postgres store: a thin caller of the functions in migrations/, in parts by contract."""

from typing import Any

from dutiful.stores.postgres import migrations
from dutiful.stores.postgres.access import PostgresAccess
from dutiful.stores.postgres.acting import PostgresActing
from dutiful.stores.postgres.alerting import PostgresAlerting
from dutiful.stores.postgres.auditing import PostgresAuditing
from dutiful.stores.postgres.connection import DRIVER_ERRORS, Connections, connect, translate
from dutiful.stores.postgres.duties import PostgresDuties
from dutiful.stores.postgres.gating import PostgresGating
from dutiful.stores.postgres.intake import PostgresIntake
from dutiful.stores.postgres.locking import PostgresLocking
from dutiful.stores.postgres.outbox import PostgresOutbox
from dutiful.stores.postgres.parting import PostgresParting
from dutiful.stores.postgres.reviewing import PostgresReviewing
from dutiful.stores.postgres.schema_name import check_schema
from dutiful.stores.postgres.tracking import PostgresTracking
from dutiful.stores.postgres.watching import PostgresWatching
from dutiful.stores.postgres.working import PostgresWorking


class PostgresStore(
    PostgresIntake,
    PostgresWorking,
    PostgresDuties,
    PostgresActing,
    PostgresTracking,
    PostgresLocking,
    PostgresOutbox,
    PostgresWatching,
    PostgresParting,
    PostgresReviewing,
    PostgresAuditing,
    PostgresAccess,
    PostgresGating,
    PostgresAlerting,
):
    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "dutiful",
        direct_dsn: str | None = None,
        pool_size: int = 8,
        notify_within: bool = True,
    ) -> None:
        check_schema(schema)
        super().__init__(Connections(dsn, size=pool_size), schema)
        self.direct_dsn = direct_dsn or dsn
        self._direct_given = direct_dsn is not None
        self._lock_mode = None
        self._notify_within = str(notify_within).lower()

    @property
    def url(self) -> str:
        return self._db.url

    @property
    def pooled(self) -> bool:
        """Whether a transaction pooler sits in between, as seen when it was opened."""
        return self._db.pooled

    async def open(self) -> None:
        await self._db.open()
        try:
            async with self._db.transaction() as connection:
                await migrations.check(connection, self._schema)
                await self._learn_tenancy(connection)
        except BaseException:
            await self._db.close()
            raise

    async def close(self) -> None:
        await self._db.close()

    async def migrate(self) -> list[str]:
        try:
            connection = await connect(self.direct_dsn, pooled=True)
            try:
                return await migrations.migrate(connection, self._schema)
            finally:
                await connection.close()
        except DRIVER_ERRORS as error:
            raise translate(error, self.url) from error

    def migration_sql(self) -> str:
        return migrations.script(self._schema)

    async def connect_direct(self) -> Any:
        """A connection that can LISTEN, past a pooler if there is one."""
        return await connect(self.direct_dsn, pooled=True)

    async def notify(self, channel: str, payload: str) -> None:
        await self._db.fetch(self._sql["notify"], channel, payload)
