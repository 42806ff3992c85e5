"""The store's face to workers: what they claim, and what becomes of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from dutiful.core.job import Claim, Token
from dutiful.core.settle import Change
from dutiful.stores.sqlite import work
from dutiful.stores.sqlite.keeper import SqliteKeeper
from dutiful.stores.sqlite.threads import Threaded
from dutiful.stores.sqlite.transaction import BufferedTransaction, complete
from dutiful.stores.sqlite.within import borrowed
from dutiful.working import Ask, Completion, Errors, Keeper, Line, Refusal, Transaction


class SqliteWorking(Threaded):
    async def peek(self, kinds: Sequence[str], *, now: datetime | None = None) -> list[Line]:
        return await self._read(lambda db: work.peek(db, kinds))

    async def claim(self, ask: Ask, *, now: datetime | None = None) -> list[Claim]:
        asked: asyncio.Future[list[Claim]] = self._submit(lambda db: work.claim(db, ask, self._clock(now)))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            # Nobody is left to run what is being claimed: it goes back to its place in the line.
            asked.add_done_callback(self._give_back)
            raise

    def _give_back(self, asked: "asyncio.Future[list[Claim]]") -> None:
        if self._threads is None or asked.cancelled() or asked.exception() is not None:
            return
        tokens = [Token(claim.job_id, claim.claim_id) for claim in asked.result()]
        if tokens:
            self._submit(lambda db: work.release(db, tokens, self._clock(None)))

    # Nobody can lock a single lease here: with skip_locked or without, there is only the one writer to wait for.

    async def complete(
        self, done: Sequence[Completion], *, skip_locked: bool = False, now: datetime | None = None
    ) -> list[Refusal]:
        return await self._write(lambda db: work.complete(db, done, self._clock(now)))

    async def settle(
        self,
        changes: Sequence[Change],
        *,
        lapsed_only: bool = False,
        skip_locked: bool = False,
        now: datetime | None = None,
    ) -> list[Refusal]:
        return await self._write(lambda db: work.settle(db, changes, lapsed_only, self._clock(now)))

    def keeper(self) -> Keeper:
        threads = self._running()
        return SqliteKeeper(threads.writer, threads.reader, self._clock)

    @asynccontextmanager
    async def transaction(
        self, token: Token, result: Callable[[], str | None], errors: Callable[[], Errors] = tuple
    ) -> AsyncIterator[Transaction]:
        buffered = BufferedTransaction()
        try:
            yield buffered
        finally:
            buffered.close()
        text, failed = result(), errors()
        await self._write(lambda db: buffered.apply(db, token, text, failed, self._clock(None)))

    async def complete_within(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None:
        self.complete_within_sync(connection, token, result, errors)

    def complete_within_sync(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None:
        with borrowed(connection, self._driver, self._path) as db:
            complete(db, token, result, errors, self._clock(None))
