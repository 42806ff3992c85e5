"""The open file: its threads, and the decorators that run a subject's verbs on them."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from dutiful.core.errors import StoreUnavailable
from dutiful.stores.sqlite.engine import schema
from dutiful.stores.sqlite.engine.driver import LIBRARIES, Connection, Driver, connect
from dutiful.stores.sqlite.engine.file_lock import WriteLock
from dutiful.stores.sqlite.engine.threads import Reader, Writer

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="Subject")

_CLOSED = "the store is not open; use it inside `async with app:`"


class Engine:
    """Runs each verb, a function of a connection, on the writer, the reader or the browser thread."""

    def __init__(self, path: str, driver: Driver, synchronous: str, busy_timeout: timedelta) -> None:
        self.path = path
        self.driver = driver
        self.busy_timeout = busy_timeout
        self._synchronous = synchronous
        self._threads: Threads | None = None

    @property
    def is_open(self) -> bool:
        """Whether this process has opened it; a forked child has to open it again."""
        return self._threads is not None and self._threads.pid == os.getpid()

    async def open(self) -> None:
        schema.check_path(self.path)
        self._threads = await asyncio.get_running_loop().run_in_executor(
            None, Threads, self.path, self.driver, self._synchronous, self.busy_timeout
        )

    async def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None and threads.pid == os.getpid():
            try:
                closing = asyncio.get_running_loop().run_in_executor(None, threads.close)
            except RuntimeError:  # the interpreter is ending, and starts no more threads
                threads.close()
            else:
                await closing

    @property
    def threads(self) -> "Threads":
        if self._threads is None:
            raise StoreUnavailable(_CLOSED)
        return self._threads

    def submit(self, verb: Callable[[Connection], T], *, transaction: bool = True) -> "asyncio.Future[T]":
        """Queues `verb` for the writer, and returns its future."""
        return self.threads.writer.ask(verb, transaction=transaction)

    async def write(self, verb: Callable[[Connection], T]) -> T:
        return await self.threads.writer.ask(verb)

    async def read(self, verb: Callable[[Connection], T]) -> T:
        return await self.threads.reader.ask(verb)

    async def browse(self, verb: Callable[[Connection], T]) -> T:
        """Runs a long read on the browser thread, so that quick reads do not wait for it."""
        return await self.threads.browser.ask(verb)


class Subject:
    """A part of the store. Its verbs, marked as `reads`, `browses` or `writes`, take a connection and become async."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine


class _RunsOn:
    def __init__(self, thread: Literal["reader", "browser", "writer"]) -> None:
        self._thread = thread

    def __call__(
        self, verb: Callable[Concatenate[S, Connection, P], T]
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        thread = self._thread

        @wraps(verb)
        async def method(subject: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            runs: Reader | Writer = getattr(subject._engine.threads, thread)
            return await runs.ask(lambda db: verb(subject, db, *args, **kwargs))

        return method


reads, browses, writes = _RunsOn("reader"), _RunsOn("browser"), _RunsOn("writer")


class Threads:
    """A writer, a reader for quick reads and a browser for long ones, in the process that opened them."""

    def __init__(self, path: str, driver: Driver, synchronous: str, busy_timeout: timedelta) -> None:
        self.pid = os.getpid()
        busy_ms = busy_timeout // timedelta(milliseconds=1)

        def opener() -> Connection:
            db = connect(path, driver, busy_ms)
            try:
                schema.prepare(db, synchronous)
            except BaseException:
                db.close()
                raise
            return db

        self._leave_library = LIBRARIES.enter(path, driver, make=True)
        self._lock = WriteLock(path, busy_timeout.total_seconds())
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
