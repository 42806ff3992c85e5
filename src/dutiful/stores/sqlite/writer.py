"""The one thread that writes: what waits while a transaction is under way shares the next one."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from dutiful.core.errors import StoreUnavailable
from dutiful.stores.sqlite import fork
from dutiful.stores.sqlite.driver import Connection, file_id, translate
from dutiful.stores.sqlite.inbox import Command, Inbox, Reply, deliver
from dutiful.stores.sqlite.lock import WriteLock

T = TypeVar("T")

_LONGEST_TRANSACTION_S = 0.020


class Writer:
    """Runs commands in group commits; a result is made known only after the COMMIT that holds it."""

    def __init__(self, path: str, lock: WriteLock, opener: Callable[[], Connection]) -> None:
        self._path = path
        self._lock = lock
        self._opener = opener
        self._inbox = Inbox()
        self._db: Connection | None = None
        self._file: tuple[int, int] | None = None
        self._gate = fork.Gate(self._abandon)
        self._thread = threading.Thread(target=self._run, name=f"dutiful-writer {path}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, command: Command[Any], *, urgent: bool = False) -> None:
        self._inbox.put(command, urgent=urgent)

    def call(self, work: Callable[[Connection], T], *, urgent: bool = False) -> T:
        """Run `work` and wait for it, from any thread that is not an event loop's."""
        reply: Reply[T] = Reply(None)
        self._inbox.put(Command(work, reply), urgent=urgent)
        return reply.wait()

    def close(self, reason: str) -> None:
        """Finish what waits, take nothing more, and close the connection; blocks until that is done."""
        self._inbox.close(reason)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (command := self._inbox.get()) is not None:
                self._serve(command)
        except BaseException as error:
            self._inbox.close(f"the writer of {self._path} stopped after an unforeseen error: {error!r}")
            raise
        finally:
            rest = self._waiting()
            self._fail(rest, StoreUnavailable(f"{self._path} was closed before this was done: open it again"))
            deliver(rest)
            with self._gate:
                self._disconnect()
            self._gate.remove()

    def _serve(self, first: Command[Any]) -> None:
        replies: list[Reply[Any]] = []
        try:
            if first.transaction:
                with self._lock, self._gate:
                    self._transact(first, replies)
            else:
                replies.append(first.reply)
                with self._gate:
                    first.reply.value = first.work(self._connected())
        except Exception as error:
            if not replies:
                # No transaction could be begun: nobody else that waits would fare better.
                replies = [first.reply, *self._waiting()]
            self._fail(replies, error)
        deliver(replies)

    def _transact(self, first: Command[Any], replies: list[Reply[Any]]) -> None:
        db = self._connected()
        self._check_file()
        db.run("BEGIN IMMEDIATE")
        try:
            until = time.monotonic() + _LONGEST_TRANSACTION_S
            command: Command[Any] | None = first
            while command is not None:
                # Alone in its transaction so far, a command needs no savepoint: all of it can be undone.
                alone = not replies
                replies.append(command.reply)
                self._attempt(db, command, alone)
                command = self._inbox.get_nowait() if time.monotonic() < until else None
            db.run("COMMIT")
        except BaseException:
            self._roll_back(db)
            raise

    def _attempt(self, db: Connection, command: Command[Any], alone: bool) -> None:
        """Run one command so that its failure leaves the others' work as it was."""
        if not alone:
            db.run("SAVEPOINT command")
        try:
            command.reply.value = command.work(db)
        except Exception as error:
            if not db.in_transaction:
                raise  # SQLite itself rolled everything back: no space, no memory, or the disk failed.
            if alone:
                db.run("ROLLBACK")
                db.run("BEGIN IMMEDIATE")
            else:
                db.run("ROLLBACK TO command")
                db.run("RELEASE command")
            command.reply.error = translate(error, self._path)
        else:
            if not alone:
                db.run("RELEASE command")

    def _roll_back(self, db: Connection) -> None:
        try:
            if db.in_transaction:
                db.run("ROLLBACK")
        except Exception:
            self._disconnect()  # Opened again for the next command.

    def _fail(self, replies: list[Reply[Any]], error: Exception) -> None:
        """Everything in the transaction is gone; a command that had failed by itself keeps its own reason."""
        cause = translate(error, self._path)
        for reply in replies:
            reply.error = reply.error or _copy(cause)

    def _connected(self) -> Connection:
        if self._db is None:
            self._db = self._opener()
            self._file = file_id(self._path)
        return self._db

    def _check_file(self) -> None:
        # SQLite would go on writing to a file that has no name any more.
        if file_id(self._path) != self._file:
            raise StoreUnavailable(
                f"{self._path} was deleted or replaced while it was open: put it back, or restart what uses it"
            )

    def _disconnect(self) -> None:
        if self._db is not None:
            db, self._db = self._db, None
            db.close()

    def _waiting(self) -> list[Reply[Any]]:
        waiting: list[Reply[Any]] = []
        while (command := self._inbox.get_nowait()) is not None:
            waiting.append(command.reply)
        return waiting

    def _abandon(self) -> None:
        self._disconnect()
        self._lock.close()
        self._inbox.abandon(fork.REASON)


def _copy(error: BaseException) -> BaseException:
    # Raised in several places at once, one exception would collect all their tracebacks.
    return type(error)(*error.args) if isinstance(error, StoreUnavailable) else error
