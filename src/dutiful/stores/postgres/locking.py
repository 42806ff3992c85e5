"""Named locks in Postgres: advisory locks on a connection of their own, or rows behind a transaction pooler."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from dutiful.core import ids
from dutiful.core.errors import ClaimLost
from dutiful.core.job import Token
from dutiful.locking import LockMode, LockName
from dutiful.stores.postgres.connection import DRIVER_ERRORS, behind_pooler, connect, translate
from dutiful.stores.postgres.lock_session import PostgresLockSession
from dutiful.stores.postgres.part import PostgresPart


class PostgresLocking(PostgresPart):
    direct_dsn: str
    _direct_given: bool
    _lock_mode: LockMode | None

    async def lock_mode(self) -> LockMode:
        if self._lock_mode is None:
            self._lock_mode = await self._find_lock_mode()
        return self._lock_mode

    async def _find_lock_mode(self) -> LockMode:
        pooled = self._db.pooled
        if self._direct_given:
            try:
                connection = await connect(self.direct_dsn, pooled=True, command_timeout=10)
                try:
                    pooled = await behind_pooler(connection)
                finally:
                    await connection.close(timeout=5)
            except DRIVER_ERRORS as error:
                raise translate(error, self._db.url) from error
        return LockMode.ROWS if pooled else LockMode.SESSIONS

    async def lock_session(self, lost: Callable[[], None]) -> PostgresLockSession | None:
        if await self.lock_mode() is LockMode.ROWS:
            return None
        try:
            connection = await connect(self.direct_dsn, pooled=True)
            await connection.fetch(self._sql["lock_settings"])
            secret = await connection.fetchval(self._sql["lock_secret"])
        except DRIVER_ERRORS as error:
            raise translate(error, self._db.url) from error
        return PostgresLockSession(connection, self._sql, secret, self._db.url, lost)

    async def try_lock(self, token: Token, name: LockName, *, now: datetime | None = None) -> bool:
        ours = (await self._db.fetch(self._sql["try_lock"], *_row(token, name), now))[0][0]
        if ours is None:
            raise ClaimLost(
                f"job {ids.public(token.job_id)} is no longer ours, so it cannot have the lock {name}: "
                "another worker runs the job again"
            )
        return bool(ours)

    async def unlock(self, token: Token, name: LockName) -> None:
        await self._db.fetch(self._sql["unlock"], *_row(token, name))


def _row(token: Token, name: LockName) -> tuple[Any, ...]:
    return token.job_id, token.claim_id, name.namespace, msgspec.json.encode(name.key).decode()
