"""The threads of an open store, and how its verbs reach them."""

import asyncio
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

from dutiful.core.errors import StoreUnavailable
from dutiful.stores.sqlite import schema
from dutiful.stores.sqlite.codec import micros
from dutiful.stores.sqlite.driver import LIBRARIES, Connection, Driver, connect
from dutiful.stores.sqlite.inbox import Command, Reply
from dutiful.stores.sqlite.lock import WriteLock
from dutiful.stores.sqlite.reader import Reader
from dutiful.stores.sqlite.writer import Writer

T = TypeVar("T")

_CLOSED = "the store is not open; use `async with app:` or await app.open() first"


class Threads:
    """Each with its connection, in the process that opened them."""

    def __init__(self, path: str, driver: Driver, synchronous: str, busy: timedelta) -> None:
        self.pid = os.getpid()
        busy_ms = busy // timedelta(milliseconds=1)

        def opener() -> Connection:
            db = connect(path, driver, busy_ms)
            try:
                schema.prepare(db, synchronous)
            except BaseException:
                db.close()
                raise
            return db

        self._leave_library = LIBRARIES.enter(path, driver)
        self._lock = WriteLock(path, busy.total_seconds())
        try:
            self._lock.open()
        except BaseException:
            self._leave_library()
            raise
        self.writer = Writer(path, self._lock, opener)
        self.reader = Reader(path, "reader", opener)
        self.browser = Reader(path, "browser", opener)
        for thread in (self.writer, self.reader, self.browser):
            thread.start()

    def close(self) -> None:
        for thread in (self.reader, self.browser, self.writer):
            thread.close(_CLOSED)
        self._lock.close()
        self._leave_library()


class Threaded:
    """What every part of the store is made of: each verb is run by the thread that may run it."""

    _path: str
    _driver: Driver
    _threads: Threads | None = None

    async def _write(self, verb: Callable[[Connection], T]) -> T:
        return await self._submit(verb)

    def _submit(self, verb: Callable[[Connection], T], *, transaction: bool = True) -> "asyncio.Future[T]":
        reply: Reply[T] = Reply(asyncio.get_running_loop())
        self._running().writer.submit(Command(verb, reply, transaction))
        assert reply.future is not None
        return reply.future

    async def _read(self, verb: Callable[[Connection], T]) -> T:
        return await self._ask(self._running().reader, verb)

    async def _browse(self, verb: Callable[[Connection], T]) -> T:
        """Read something that may take long, without keeping quick reads waiting."""
        return await self._ask(self._running().browser, verb)

    async def _ask(self, reader: Reader, verb: Callable[[Connection], T]) -> T:
        reply: Reply[T] = Reply(asyncio.get_running_loop())
        reader.submit(Command(verb, reply))
        assert reply.future is not None
        return await reply.future

    def _running(self) -> Threads:
        if self._threads is None:
            raise StoreUnavailable(_CLOSED)
        return self._threads

    @staticmethod
    def _clock(now: datetime | None) -> int:
        return time.time_ns() // 1000 if now is None else micros(now)
