"""Threads that own a connection: one writes, two read.

Commands that come while the writer's transaction is under way share the next one (group commit). Each read is one
snapshot, and no writer waits for it.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from dutiful.core.errors import StoreUnavailable
from dutiful.stores.sqlite.engine import fork
from dutiful.stores.sqlite.engine.driver import Connection, file_id, translate
from dutiful.stores.sqlite.engine.file_lock import WriteLock

T = TypeVar("T")

_LONGEST_TRANSACTION_S = 0.020


class Command(Generic[T]):
    """Work for a thread's connection; its result goes to an asyncio future or, without a loop, to a waiting thread.

    `transaction`: whether the writer opens one for it.
    """

    __slots__ = ("_done", "error", "future", "loop", "transaction", "value", "work")

    def __init__(
        self, work: Callable[[Connection], T], loop: asyncio.AbstractEventLoop | None = None, transaction: bool = True
    ) -> None:
        self.work = work
        self.loop = loop
        self.transaction = transaction
        self.future: asyncio.Future[T] | None = loop.create_future() if loop else None
        self._done = None if loop else threading.Event()
        self.value: T | None = None
        self.error: BaseException | None = None

    def wait(self) -> T:
        assert self._done is not None
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    def deliver(self) -> None:
        """Sets the result; if there is a future, it must be called on the thread of its loop."""
        if self._done is not None:
            self._done.set()
        elif self.future is not None and not self.future.done():
            if self.error is not None:
                self.future.set_exception(self.error)
            else:
                self.future.set_result(self.value)  # type: ignore[arg-type]


class Inbox:
    """Commands that wait for a thread, urgent ones first; once closed, it takes no more."""

    def __init__(self) -> None:
        self._urgent: deque[Command[Any]] = deque()
        self._normal: deque[Command[Any]] = deque()
        # One token for each command; the last one wakes the thread after the inbox was closed.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed: str | None = None

    def put(self, command: Command[Any], *, urgent: bool = False) -> None:
        with self._lock:
            if self._closed is not None:
                raise StoreUnavailable(self._closed)
            (self._urgent if urgent else self._normal).append(command)
            self._bell.put(None)

    def get(self) -> Command[Any] | None:
        """Waits for the next command; None once the inbox is closed and empty."""
        self._bell.get()
        return self._next()

    def get_nowait(self) -> Command[Any] | None:
        try:
            self._bell.get_nowait()
        except Empty:
            return None
        command = self._next()
        if command is None:
            self._bell.put(None)  # The closing token is for get().
        return command

    def close(self, reason: str) -> None:
        with self._lock:
            if self._closed is None:
                self._closed = reason
                self._bell.put(None)

    def abandon(self, reason: str) -> None:
        """Closes it in a forked child, with a new lock, because a thread of the parent may have held the old one."""
        self._lock = threading.Lock()
        self._closed = reason

    def _next(self) -> Command[Any] | None:
        if self._urgent:
            return self._urgent.popleft()
        return self._normal.popleft() if self._normal else None


def deliver(commands: Iterable[Command[Any]]) -> None:
    """Delivers many results with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Command[Any]]] = {}
    for command in commands:
        if command.loop is None:
            command.deliver()
        else:
            by_loop.setdefault(command.loop, []).append(command)
    for loop, waiting in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver_all, waiting)
        except RuntimeError:
            continue  # The loop is closed, so nothing awaits these futures.


def _deliver_all(commands: list[Command[Any]]) -> None:
    for command in commands:
        command.deliver()


class _ConnectionThread:
    """A daemon thread with an inbox and a connection, which is opened when it is first needed."""

    def __init__(self, path: str, name: str, opener: Callable[[], Connection]) -> None:
        self._path = path
        self._opener = opener
        self._inbox = Inbox()
        self._db: Connection | None = None
        self._gate = fork.Gate(self._abandon)
        self._thread = threading.Thread(target=self._run, name=f"dutiful-{name} {path}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, command: Command[Any], *, urgent: bool = False) -> None:
        self._inbox.put(command, urgent=urgent)

    def call(self, work: Callable[[Connection], T], *, urgent: bool = False) -> T:
        """Runs `work` and waits for it; not to be called on the thread of an event loop."""
        command = Command(work)
        self.submit(command, urgent=urgent)
        return command.wait()

    def ask(self, work: Callable[[Connection], T], *, transaction: bool = True) -> "asyncio.Future[T]":
        """Queues `work`, and returns its future."""
        command = Command(work, asyncio.get_running_loop(), transaction)
        self.submit(command)
        assert command.future is not None
        return command.future

    def close(self, reason: str) -> None:
        """Accepts no more commands, finishes those that wait, and closes the connection; blocks until that is done."""
        self._inbox.close(reason)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (command := self._inbox.get()) is not None:
                self._serve(command)
        except BaseException as error:
            self._inbox.close(f"a thread of {self._path} stopped after an unforeseen error: {error!r}")
            raise
        finally:
            rest = self._waiting()
            self._fail(rest, StoreUnavailable(f"{self._path} was closed before this was done: open it again"))
            deliver(rest)
            with self._gate:
                self._disconnect()
            self._gate.remove()

    def _serve(self, command: Command[Any]) -> None:
        raise NotImplementedError

    def _fail(self, commands: Iterable[Command[Any]], error: Exception) -> None:
        """Fails commands that have not failed already; a command that failed by itself keeps its own error."""
        cause = translate(error, self._path)
        for command in commands:
            command.error = command.error or _copy(cause)

    def _connected(self) -> Connection:
        if self._db is None:
            self._db = self._opener()
        return self._db

    def _disconnect(self) -> None:
        if self._db is not None:
            db, self._db = self._db, None
            db.close()

    def _waiting(self) -> list[Command[Any]]:
        return list(iter(self._inbox.get_nowait, None))

    def _abandon(self) -> None:
        self._disconnect()
        self._inbox.abandon(fork.REASON)


class Reader(_ConnectionThread):
    """Runs one read after the other."""

    def _serve(self, command: Command[Any]) -> None:
        with self._gate:
            self._read(command)
        deliver([command])

    def _read(self, command: Command[Any]) -> None:
        try:
            db = self._connected()
            db.run("BEGIN")
            try:
                command.value = command.work(db)
            finally:
                if db.in_transaction:
                    db.run("COMMIT")
        except Exception as error:
            command.error = translate(error, self._path)


class Writer(_ConnectionThread):
    """Runs commands in group commits; a result is published only after the COMMIT that holds it."""

    def __init__(self, path: str, lock: WriteLock, opener: Callable[[], Connection]) -> None:
        super().__init__(path, "writer", opener)
        self._lock = lock
        self._file_path = Path(path)  # made once: that takes longer than to look at the file, as every transaction does
        self._file: tuple[int, int] | None = None

    def _serve(self, command: Command[Any]) -> None:
        taken: list[Command[Any]] = []
        try:
            if command.transaction:
                with self._lock, self._gate:
                    self._transact(command, taken)
            else:
                taken.append(command)
                with self._gate:
                    command.value = command.work(self._connected())
        except Exception as error:
            if not taken:
                # No transaction could be begun, so the other waiting commands would not succeed either.
                taken = [command, *self._waiting()]
            self._fail(taken, error)
        deliver(taken)

    def _transact(self, first: Command[Any], taken: list[Command[Any]]) -> None:
        db = self._connected()
        self._check_file()
        db.run("BEGIN IMMEDIATE")
        try:
            until = time.monotonic() + _LONGEST_TRANSACTION_S
            command: Command[Any] | None = first
            while command is not None:
                # The first command needs no savepoint, because the whole transaction can be rolled back.
                alone = not taken
                taken.append(command)
                self._attempt(db, command, alone)
                command = self._inbox.get_nowait() if time.monotonic() < until else None
            db.run("COMMIT")
        except BaseException:
            self._roll_back(db)
            raise

    def _attempt(self, db: Connection, command: Command[Any], alone: bool) -> None:
        """Runs one command; if it fails, the work of the others is kept."""
        if not alone:
            db.run("SAVEPOINT command")
        try:
            command.value = command.work(db)
        except Exception as error:
            if not db.in_transaction:
                raise  # SQLite itself rolled everything back: no space, no memory, or the disk failed.
            if alone:
                db.run("ROLLBACK")
                db.run("BEGIN IMMEDIATE")
            else:
                db.run("ROLLBACK TO command")
                db.run("RELEASE command")
            command.error = translate(error, self._path)
        else:
            if not alone:
                db.run("RELEASE command")

    def _roll_back(self, db: Connection) -> None:
        try:
            if db.in_transaction:
                db.run("ROLLBACK")
        except Exception:
            self._disconnect()  # Opened again for the next command.

    def _connected(self) -> Connection:
        if self._db is None:
            self._db = self._opener()
            self._file = file_id(self._file_path)
        return self._db

    def _check_file(self) -> None:
        # SQLite would continue to write to a deleted file.
        if file_id(self._file_path) != self._file:
            raise StoreUnavailable(
                f"{self._path} was deleted or replaced while it was open: put it back, or restart what uses it"
            )

    def _abandon(self) -> None:
        super()._abandon()
        self._lock.close()


def _copy(error: BaseException) -> BaseException:
    # One exception raised in several places would collect all their tracebacks.
    return type(error)(*error.args) if isinstance(error, StoreUnavailable) else error
