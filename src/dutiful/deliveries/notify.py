"""Hints through LISTEN/NOTIFY: debounced, sent after the commit, heard on a connection of its own."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from dutiful.delivery import EVERYWHERE, Lines

log = logging.getLogger("dutiful.delivery")
# NOTIFY takes a database-wide lock at commit, so it is sent at most this often; the rest goes with the next.
QUIET = 0.01
FIRST_RETRY, LONGEST_RETRY = 0.1, 5.0
PAYLOAD_LIMIT = 7_900


class Notify:
    """`send` notifies on the store's own connections; `connect` opens one that can LISTEN.

    Through a transaction pooler nobody can listen: then `connect` is None, and workers poll.
    """

    def __init__(
        self, channel: str, send: Callable[[str], Awaitable[None]], connect: Callable[[], Awaitable[Any]] | None
    ) -> None:
        self._channel = channel
        self._send = send
        self._connect = connect
        self._pending: set[tuple[str, int]] = set()
        self._everywhere = False
        self._sent_at = 0.0
        self._sending: asyncio.Task[None] | None = None
        self._listeners: set[asyncio.Queue[Lines]] = set()
        self._hearing: asyncio.Task[None] | None = None
        self._healthy = False

    @property
    def healthy(self) -> bool:
        return self._healthy

    def rides(self) -> bool:
        """True at most once in QUIET."""
        now = time.monotonic()
        if self._sending is not None or now - self._sent_at < QUIET:
            return False
        self._sent_at = now
        return True

    def hint(self, lines: Lines, *, sent: bool = False) -> None:
        self._tell(lines)
        if sent:
            return
        self._pending |= lines
        self._everywhere = self._everywhere or not lines
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_pending(), name="dutiful notify")

    async def _send_pending(self) -> None:
        try:
            while self._pending or self._everywhere:
                await asyncio.sleep(max(0.0, self._sent_at + QUIET - time.monotonic()))
                lines, self._pending = self._pending, set()
                payload = "[]" if self._everywhere else msgspec.json.encode(sorted(lines)).decode()
                self._everywhere, self._sent_at = False, time.monotonic()
                await self._send(payload if len(payload) < PAYLOAD_LIMIT else "[]")
        except Exception as error:  # a hint may be lost: workers poll
            log.debug("hint not sent: %s", error)
        finally:
            self._sending = None

    async def listen(self) -> AsyncIterator[Lines]:
        heard: asyncio.Queue[Lines] = asyncio.Queue()
        self._listeners.add(heard)
        if self._hearing is None and self._connect is not None:
            self._hearing = asyncio.create_task(self._hear(), name="dutiful listen")
        try:
            while True:
                lines = await heard.get()
                while not heard.empty():
                    more = heard.get_nowait()
                    lines = lines | more if lines and more else EVERYWHERE
                yield lines
        finally:
            self._listeners.discard(heard)
            if not self._listeners and self._hearing:
                self._hearing.cancel()
                self._hearing = None

    async def _hear(self) -> None:
        """Listen for ever; a connection that ends is replaced, and everybody told to look everywhere."""
        assert self._connect is not None
        pause = FIRST_RETRY
        while True:
            connection = None
            try:
                connection = await self._connect()
                gone = asyncio.Event()
                connection.add_termination_listener(lambda _, gone=gone: gone.set())
                await connection.add_listener(self._channel, self._on_notify)
                self._healthy = True
                pause = FIRST_RETRY
                self._tell(EVERYWHERE)
                while not gone.is_set():
                    try:
                        await asyncio.wait_for(gone.wait(), 60)
                    except TimeoutError:
                        # A connection that a firewall dropped says nothing: ask now and then.
                        await connection.execute("select 1", timeout=10)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.debug("listener: %s", error)
            finally:
                self._healthy = False
                if connection is not None:
                    connection.terminate()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_RETRY)

    def _on_notify(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        try:
            lines = frozenset((str(q), int(p)) for q, p in msgspec.json.decode(payload))
        except (msgspec.DecodeError, TypeError, ValueError):
            lines = EVERYWHERE  # somebody's own NOTIFY: still a reason to look
        self._tell(lines)

    def _tell(self, lines: Lines) -> None:
        for listener in self._listeners:
            listener.put_nowait(lines)

    async def close(self) -> None:
        tasks = [t for t in (self._sending, self._hearing) if t]
        if self._hearing:
            self._hearing.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
