"""Named locks in Postgres: advisory locks on a separate connection, or rows behind a transaction pooler."""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from dutiful.core.errors import UsageError
from dutiful.core.job import ClaimToken
from dutiful.store.locks import LockHolder, LockMode, LockName, lock_refused
from dutiful.stores.postgres.engine.connection import DRIVER_ERRORS, behind_pooler, connect, translate
from dutiful.stores.postgres.engine.subject import Session, Subject
from dutiful.stores.statements import Statements


class PostgresLockSession:
    def __init__(
        self, connection: Any, sql: Statements, numbers: "LockNumbers", url: str, lost: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._numbers = numbers
        self._url = url
        self._lost = lost
        self._closing = False
        self._turn = asyncio.Lock()
        connection.add_termination_listener(self._ended)
        # In an empty context, because the session outlives the handler that first needed it.
        self._heart = asyncio.create_task(self._beat(), name="dutiful lock session", context=Context())

    async def acquire(self, name: LockName, patience: float) -> bool:
        limit = min(max(round(patience * 1000), 1), _LONGEST)
        numbers = self._numbers.of(name)
        try:
            await self._fetch("lock_acquire", *numbers, str(limit), timeout=limit / 1000 + 10)
        except asyncpg.LockNotAvailableError:
            return False
        except DRIVER_ERRORS as error:
            raise translate(error, self._url) from error
        return True

    async def release(self, name: LockName) -> None:
        if self._connection.is_closed():
            return  # so the server has freed it
        try:
            await self._fetch("lock_release", *self._numbers.of(name), timeout=10)
        except DRIVER_ERRORS as error:
            raise translate(error, self._url) from error

    async def close(self) -> None:
        self._closing = True
        self._heart.cancel()
        try:
            with contextlib.suppress(Exception):  # terminated below
                await self._connection.close(timeout=2)
        finally:
            self._connection.terminate()

    async def _beat(self) -> None:
        """Queries the server now and then, because a connection that is cut off gives no sign."""
        while True:
            await asyncio.sleep(HEARTBEAT)
            if not self._turn.locked():
                with contextlib.suppress(*DRIVER_ERRORS):  # then the connection has ended, and `lost` was called
                    await self._fetch("clock", timeout=HEARTBEAT)

    async def _fetch(self, statement: str, *args: Any, timeout: float) -> None:
        async with self._turn:
            try:
                await self._connection.fetch(self._sql[statement], *args, timeout=timeout)
            except TimeoutError:
                # Which locks the session holds is unknown now; the server frees all of them when the connection ends.
                self._connection.terminate()
                raise

    def _ended(self, _: Any) -> None:
        self._heart.cancel()
        if not self._closing:
            self._closing = True
            self._lost()


class PostgresLocks(Subject):
    _mode: LockMode | None = None

    def __init__(self, session: Session, classes: Mapping[str, int]) -> None:
        super().__init__(session)
        self._classes = classes

    async def scheme(self) -> str:
        mode = await self.mode()
        classes = self._classes if mode is LockMode.SESSIONS else {}
        return " ".join([mode, *(f"{namespace}={number}" for namespace, number in sorted(classes.items()))])

    async def mode(self) -> LockMode:
        if self._mode is None:
            self._mode = await self._find_mode()
        return self._mode

    async def _find_mode(self) -> LockMode:
        pooled = self._db.pooled
        if self._session.direct_given:
            try:
                connection = await connect(self._session.direct_dsn, pooled=True, command_timeout=10)
                try:
                    pooled = await behind_pooler(connection)
                finally:
                    await connection.close(timeout=5)
            except DRIVER_ERRORS as error:
                raise translate(error, self._db.url) from error
        return LockMode.ROWS if pooled else LockMode.SESSIONS

    async def session(self, lost: Callable[[], None]) -> PostgresLockSession | None:
        if await self.mode() is LockMode.ROWS:
            return None
        try:
            connection = await connect(self._session.direct_dsn, pooled=True)
            await connection.fetch(self._sql["lock_settings"])
            secret = await connection.fetchval(self._sql["lock_secret"])
        except DRIVER_ERRORS as error:
            raise translate(error, self._db.url) from error
        return PostgresLockSession(connection, self._sql, LockNumbers(secret, self._classes), self._db.url, lost)

    async def holder(self, name: LockName) -> LockHolder | None:
        if await self.mode() is LockMode.ROWS:
            return None
        ((secret,),) = await self._db.fetch(self._sql["lock_secret"])
        found = await self._db.fetch(self._sql["lock_holder"], *LockNumbers(secret, self._classes).of(name))
        return LockHolder(*found[0]) if found else None

    async def intruders(self) -> list[tuple[str, str]]:
        """Problems, each with its remedy: sessions that hold a worker's lock, or wait for one, and are no worker's."""
        return [
            (
                f"process {pid} of the database, role {role}, {'holds' if holds else 'waits for'} a lock that workers "
                "use for jobs, and it is no worker: its role has no rights here, but any role may take such locks",
                f"end it with `select pg_terminate_backend({pid})`; then keep the role out, with `revoke connect` or "
                "pg_hba.conf",
            )
            for pid, role, holds in await self._db.fetch(self._sql["lock_intruders"])
        ]

    async def try_acquire(self, token: ClaimToken, name: LockName, *, now: datetime | None = None) -> bool:
        ours = await self._call("try_lock", *_row(token, name), now)
        if ours is None:
            raise lock_refused(token, name)
        return bool(ours)

    async def free(self, token: ClaimToken, name: LockName) -> None:
        await self._db.fetch(self._sql["unlock"], *_row(token, name))


def _row(token: ClaimToken, name: LockName) -> tuple[Any, ...]:
    return token.job_id, token.claim_id, name.namespace, msgspec.json.encode(name.key).decode()


HEARTBEAT = 5.0
_LONGEST = 2**31 - 1  # the longest lock_timeout, in milliseconds


@dataclass(frozen=True, slots=True)
class LockNumbers:
    """The two numbers of an advisory lock.

    Any role that may connect can take advisory locks; the schema's `secret` keeps it from guessing their numbers.
    Namespaces with a class give that up, so that other programs can take their locks.
    """

    secret: str
    classes: Mapping[str, int]

    def of(self, name: LockName) -> tuple[int, int]:
        """The class of the namespace, or its hash; and the key itself if it fits, else its hash."""
        fits = isinstance(name.key, int) and -(2**31) <= name.key < 2**31
        number = self.classes.get(name.namespace)
        if number is not None and not fits:
            raise UsageError(
                f"the lock {name} has a class, {number}, so its key must be a whole number of 32 bits: give it one, or "
                f"leave {name.namespace} out of the setting lock_classes"
            )
        key = int(name.key) if fits else _hash(f"{self.secret} {msgspec.json.encode(name.key).decode()}")
        return _hash(f"{self.secret} {name.namespace}") if number is None else number, key


def _hash(text: str) -> int:
    """The first 32 bits of SHA-256, the same in every process and release. Names with equal hashes share a lock."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big", signed=True)
