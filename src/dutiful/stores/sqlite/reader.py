"""A thread that reads: each read is one snapshot, and no writer waits for it."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from dutiful.core.errors import StoreUnavailable
from dutiful.stores.sqlite import fork
from dutiful.stores.sqlite.driver import Connection, translate
from dutiful.stores.sqlite.inbox import Command, Inbox, Reply, deliver

T = TypeVar("T")


class Reader:
    """Runs one read after the other on a connection of its own, which is opened at the first."""

    def __init__(self, path: str, name: str, opener: Callable[[], Connection]) -> None:
        self._path = path
        self._opener = opener
        self._inbox = Inbox()
        self._db: Connection | None = None
        self._gate = fork.Gate(self._abandon)
        self._thread = threading.Thread(target=self._run, name=f"dutiful-{name} {path}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, command: Command[Any]) -> None:
        self._inbox.put(command)

    def call(self, work: Callable[[Connection], T]) -> T:
        """Run `work` and wait for it, from any thread that is not an event loop's."""
        reply: Reply[T] = Reply(None)
        self._inbox.put(Command(work, reply))
        return reply.wait()

    def close(self, reason: str) -> None:
        """Finish what waits, take nothing more, and close the connection; blocks until that is done."""
        self._inbox.close(reason)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (command := self._inbox.get()) is not None:
                with self._gate:
                    self._read(command)
                deliver([command.reply])
        finally:
            self._inbox.close(f"the reader of {self._path} has stopped")
            while (command := self._inbox.get_nowait()) is not None:
                command.reply.error = StoreUnavailable(f"{self._path} was closed before this was read: open it again")
                deliver([command.reply])
            with self._gate:
                self._disconnect()
            self._gate.remove()

    def _read(self, command: Command[Any]) -> None:
        try:
            if self._db is None:
                self._db = self._opener()
            self._db.run("BEGIN")
            try:
                command.reply.value = command.work(self._db)
            finally:
                if self._db.in_transaction:
                    self._db.run("COMMIT")
        except Exception as error:
            command.reply.error = translate(error, self._path)

    def _disconnect(self) -> None:
        if self._db is not None:
            db, self._db = self._db, None
            db.close()

    def _abandon(self) -> None:
        self._disconnect()
        self._inbox.abandon(fork.REASON)
