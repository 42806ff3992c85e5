"""The store's face to running jobs that want a lock."""

from collections.abc import Callable
from datetime import datetime

from dutiful.core.job import Token
from dutiful.locking import LockMode, LockName
from dutiful.stores.sqlite import locking
from dutiful.stores.sqlite.locking import Standing
from dutiful.stores.sqlite.threads import Threaded


class SqliteLocking(Threaded):
    async def lock_mode(self) -> LockMode:
        return LockMode.ROWS

    async def lock_session(self, lost: Callable[[], None]) -> None:
        """A process has no connection here that would end with it: locks are rows."""

    async def try_lock(self, token: Token, name: LockName, *, now: datetime | None = None) -> bool:
        # Whoever waits asks often, and then only reads.
        standing = await self._read(lambda db: locking.look(db, token, name, self._clock(now)))
        if standing in (Standing.HELD, Standing.WAITING):
            return standing is Standing.HELD
        return await self._write(lambda db: locking.try_lock(db, token, name, self._clock(now)))

    async def unlock(self, token: Token, name: LockName) -> None:
        await self._write(lambda db: locking.unlock(db, token, name))
