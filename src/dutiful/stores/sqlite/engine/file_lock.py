"""Locks between processes, on files beside the database; the kernel frees them when their holder dies."""

import fcntl
import os
import time
from types import TracebackType
from typing import Self

from dutiful.core.errors import StoreAway, StoreUnavailable
from dutiful.stores.sqlite.engine import fork
from dutiful.stores.sqlite.engine.files import open_beside

_SHORTEST_S, _LONGEST_S = 0.000_05, 0.001
_STANDS_IN = 30_000_000
"""How long, in microseconds, a process that found the leader stalled runs the services in its place."""


class FileLock:
    """An exclusive flock on a separate file; it belongs to the open file, not to the process.

    The file is never deleted: a process that waits for the old file and one that creates a new one would both get the
    lock.
    """

    def __init__(self, database: str, name: str) -> None:
        self.path = f"{database}-{name}"
        self._database = database
        self._fd = -1

    def open(self) -> None:
        if self._fd < 0:
            try:
                self._fd = open_beside(self.path, self._database)
            except OSError as error:
                raise StoreUnavailable(
                    f"the lock file {self.path} cannot be opened ({error.strerror}): "
                    "check the permissions of the file and of its directory"
                ) from error

    def try_acquire(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be locked: {error.strerror}") from error
        return True

    def release(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Closes the file; in a forked child this does not release the parent's lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class WriteLock:
    """Lets processes write in turn, so that one that always writes cannot starve the others.

    There are two locks. A writer takes the turnstile, waits for the write lock, and only then releases the turnstile.
    So a writer that has just finished and wants more finds the turnstile taken by a process that waits. SQLite's own
    busy handler is not fair.
    """

    def __init__(self, path: str, timeout_s: float) -> None:
        self._turn = FileLock(path, "turn")
        self._write = FileLock(path, "lock")
        self._timeout_s = timeout_s

    def open(self) -> None:
        self._turn.open()
        self._write.open()

    def close(self) -> None:
        self._turn.close()
        self._write.close()

    def __enter__(self) -> Self:
        self._wait_for(self._turn)
        try:
            self._wait_for(self._write)
        finally:
            self._turn.release()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._write.release()

    def _wait_for(self, lock: FileLock) -> None:
        # Polled instead of waited for in the kernel, so that a holder that was stopped (a debugger, a frozen container)
        # causes an error instead of an endless wait. The pauses grow with the time waited.
        if lock.try_acquire():
            return
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            if waited > self._timeout_s:
                raise StoreAway(
                    f"another process has been writing for {waited:.0f} s and holds {lock.path}: "
                    "look for one that was stopped or hangs (fuser names it), then try again"
                )
            time.sleep(min(max(waited / 8, _SHORTEST_S), _LONGEST_S))
            if lock.try_acquire():
                return


class LeaderLock:
    """A process leads while it holds a file lock, which the kernel frees at its end; an idle leader writes nothing."""

    def __init__(self, path: str) -> None:
        self._lock = FileLock(path, "leader")
        self._gate: fork.Gate | None = None
        self.held = False
        self._stands_in_until = 0

    def open(self) -> None:
        self._lock.open()
        self._gate = fork.Gate(self.close)

    def take(self) -> bool:
        self.held = self.held or self._lock.try_acquire()
        return self.held

    def stand_in(self, now: int) -> None:
        """Leads for a while in place of a stalled leader."""
        self._stands_in_until = now + _STANDS_IN

    def leads(self, now: int) -> bool:
        return self.held or now < self._stands_in_until

    def resign(self) -> None:
        self._stands_in_until = 0
        if self.held:
            self.held = False
            self._lock.release()

    def close(self) -> None:
        self.held = False
        self._lock.close()
