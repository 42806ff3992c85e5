"""Notices commits of other processes to a database file, at once; at rest, it looks four times a second."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from dutiful.core.errors import DutifulError
from dutiful.delivery.inotify import CLOSE_WRITE, MODIFY, ONCE, Inotify

log = logging.getLogger("dutiful.delivery")

SIGNAL_INTERVAL = 0.01  # seconds between two hints to other processes
SETTLES = 0.005  # from the write of a commit until other processes see it: the disk is flushed in between
BREATH = 0.002  # between two looks, however many processes signal
UNCHANGED = 10  # looks that found nothing new, after which nothing is polled


class FileChanges:
    """`version` is a counter of the file, which changes with the commits of others.

    It is read when another process signals a commit, by opening and closing the file `signal`, which costs no I/O. For
    commits without a signal, it is read `every` so many seconds while the file `written` is being written to; after a
    while without a change, only once `at_rest`, until the kernel reports a write. Where the kernel reports nothing, it
    is read `every` so many seconds all the time.
    """

    def __init__(
        self,
        version: Callable[[], Awaitable[int]],
        *,
        written: str,
        signal: str,
        every: float = 0.03,
        at_rest: float = 0.25,
    ) -> None:
        self._version = version
        self._written_path = written
        self._signal_path = signal
        self._every = every
        self._at_rest = at_rest
        self._signalled_at = float("-inf")
        self._signalling: asyncio.TimerHandle | None = None

    def signal(self) -> None:
        """Signals a commit to other processes, at once or at the end of the interval; never raises."""
        if self._signalling is not None:
            return
        loop = asyncio.get_running_loop()
        wait = self._signalled_at + SIGNAL_INTERVAL - loop.time()
        if wait > 0:
            self._signalling = loop.call_later(wait, self._signal, loop)
        else:
            self._signal(loop)

    def _signal(self, loop: asyncio.AbstractEventLoop) -> None:
        self._signalling, self._signalled_at = None, loop.time()
        self._touch()

    def _touch(self) -> None:
        try:
            os.close(os.open(self._signal_path, os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:  # a hint may be lost: the commit is found later
            log.debug("hint not sent: %s", error)

    async def follow(self, notify: Callable[[], None]) -> None:
        """Calls `notify` when others have committed, until it is cancelled."""
        watch = _Watch.open(self._written_path, self._signal_path)
        try:
            await self._follow(watch, notify)
        finally:
            watch.close()

    async def _follow(self, watch: "_Watch", notify: Callable[[], None]) -> None:
        seen: int | None = None  # so that the first look notifies, too: earlier commits were not followed
        unchanged = 0
        while True:
            # Before the counter is read, so that what is written after that is not missed.
            resting = unchanged >= UNCHANGED and watch.expect_write()
            unchanged += 1
            now = await self._look()
            if now is not None and now != seen:
                seen, unchanged, resting = now, 0, False
                notify()
            await asyncio.sleep(min(BREATH, self._every))
            if await watch.wait(self._at_rest if resting else self._every):
                unchanged = 0
                await watch.wait(min(SETTLES, self._every))
            if asyncio.get_running_loop().time() < self._signalled_at + BREATH:
                # By its own signal, most likely: the claim that follows its own commit does not wait for a look.
                await asyncio.sleep(BREATH)

    async def _look(self) -> int | None:
        try:
            return await self._version()
        except DutifulError as error:  # a hint may be late: the change is seen when the counter can be read again
            log.debug("counter not read: %s", error)
            return None

    def close(self) -> None:
        if self._signalling is not None:  # the last commits are signalled, too
            self._signalling.cancel()
            self._signalling = None
            self._touch()


class _Watch:
    """Wakes its follower; without inotify it only waits."""

    def __init__(self, inotify: Inotify | None, written: str, signal: str) -> None:
        self._inotify = inotify
        self._written_path = written
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._written = False
        self._signal = inotify and inotify.watch(signal, CLOSE_WRITE)

    @classmethod
    def open(cls, written: str, signal: str) -> "_Watch":
        inotify = Inotify.open()
        watch = cls(inotify, written, signal)
        if inotify is not None:
            try:
                watch._loop.add_reader(inotify.fd, watch._read)
            except (NotImplementedError, OSError) as error:
                log.debug("the event loop cannot watch files: %s", error)
                inotify.close()
                watch._inotify = None
        return watch

    def expect_write(self) -> bool:
        """Watches for the next write; False if it cannot be noticed.

        One only, because a busy worker would be woken by each of its own.
        """
        return self._inotify is not None and self._inotify.watch(self._written_path, MODIFY | ONCE) is not None

    async def wait(self, seconds: float) -> bool:
        """Waits until a process signals, the file is written to, or the time ends; returns whether it was written."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()
        written, self._written = self._written, False
        return written

    def _read(self) -> None:
        assert self._inotify is not None
        found = self._inotify.read()
        if found:
            self._written = self._written or found != {self._signal}
            self._woken.set()

    def close(self) -> None:
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None
