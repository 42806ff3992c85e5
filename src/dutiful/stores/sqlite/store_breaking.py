"""The store's face to those who call services that may fail."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from dutiful.breaking import BreakerRecord
from dutiful.core.breaker import Barred, Breaker, BreakerPolicy, Entry, Sign
from dutiful.core.job import Token
from dutiful.stores.sqlite import breaking
from dutiful.stores.sqlite.threads import Threaded


class SqliteBreaking(Threaded):
    # Who changes nothing only reads: that is nearly everybody, nearly always.

    async def enter_breaker(
        self, name: str, policy: BreakerPolicy, token: Token, *, now: datetime | None = None
    ) -> Entry | Barred:
        seen = await self._read(lambda db: breaking.look(db, name, policy, token, self._clock(now)))
        if seen is not None:
            return seen
        return await self._write(lambda db: breaking.enter(db, name, policy, token, self._clock(now)))

    async def leave_breaker(
        self,
        name: str,
        policy: BreakerPolicy,
        token: Token,
        entry: Entry,
        sign: Sign,
        *,
        now: datetime | None = None,
    ) -> Breaker:
        seen = await self._read(lambda db: breaking.left(db, name, policy, entry, sign, self._clock(now)))
        if seen is not None:
            return seen
        return await self._write(lambda db: breaking.leave(db, name, policy, token, entry, sign, self._clock(now)))

    async def breakers(self, *, now: datetime | None = None) -> list[BreakerRecord]:
        return await self._browse(lambda db: breaking.breakers(db, self._clock(now)))

    async def breaker_of_kind(self, kind: str) -> str | None:
        return await self._read(lambda db: breaking.breaker_of_kind(db, kind))

    async def breaker_kinds(self) -> dict[str, str]:
        return await self._read(breaking.breaker_kinds)

    async def force_breaker(
        self,
        name: str,
        open_for: timedelta | None,
        policy: BreakerPolicy | None = None,
        *,
        now: datetime | None = None,
    ) -> Breaker:
        return await self._write(lambda db: breaking.force(db, name, open_for, policy, self._clock(now)))

    async def reset_breaker(self, name: str, *, now: datetime | None = None) -> Breaker | None:
        return await self._write(lambda db: breaking.reset(db, name, self._clock(now)))

    async def put_breaker_kinds(
        self,
        kinds: Mapping[str, str | None],
        policies: Mapping[str, BreakerPolicy] | None = None,
        *,
        now: datetime | None = None,
    ) -> None:
        declared = breaking.Declared(kinds, policies or {})
        news = await self._read(lambda db: breaking.news(db, declared))
        if news.kinds or news.policies:
            await self._write(lambda db: breaking.declare(db, declared, self._clock(now)))
