"""Hints through LISTEN/NOTIFY: debounced, sent after the commit, heard on a connection of its own."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import Context
from typing import Any
from uuid import uuid4

import msgspec

from dutiful.deliveries.ear import Ear
from dutiful.delivery import EVERYWHERE, Lines

log = logging.getLogger("dutiful.delivery")
# NOTIFY takes a database-wide lock at commit, so it is sent at most this often; the rest goes with the next.
QUIET = 0.01
NEWS_QUIET = 0.1
PAYLOAD_LIMIT = 7_900
# A watcher's first word on the workers' channel: they pass news on from now, not only after their next heartbeat.
WATCHING = "watching"


class Notify:
    """`send` notifies a channel on the store's own connections; `connect` opens one that can LISTEN.

    Through a transaction pooler nobody can listen: then `connect` is None, workers poll and watchers look each second.
    Workers listen on `channel`. Watchers do, too, for it tells of new jobs, and on a second one for all other news.
    """

    def __init__(
        self, channel: str, send: Callable[[str, str], Awaitable[None]], connect: Callable[[], Awaitable[Any]] | None
    ) -> None:
        self._channel = channel
        self._news_channel = f"{channel}_news"
        self._name = uuid4().hex  # what this process says to others it has told its own watchers already
        self._send = send
        self._pending: set[tuple[str, int]] = set()
        self._everywhere = False
        self._sent_at = 0.0
        self._sending: asyncio.Task[None] | None = None
        self._sending_news: asyncio.Task[None] | None = None
        self._listeners: set[asyncio.Queue[Lines]] = set()
        self._watchers: set[asyncio.Event] = set()
        self._by_others = False
        both = (self._channel, self._news_channel)
        self._ear = connect and Ear(connect, both[:1], self._on_hint, lambda: self._tell(EVERYWHERE))
        self._news_ear = connect and Ear(connect, both, self._on_news, self._wake_watchers)

    @property
    def healthy(self) -> bool:
        return self._ear is not None and self._ear.healthy

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
            self._sending = asyncio.create_task(self._send_pending(), name="dutiful notify", context=Context())

    async def _send_pending(self) -> None:
        try:
            while self._pending or self._everywhere:
                await asyncio.sleep(max(0.0, self._sent_at + QUIET - time.monotonic()))
                lines, self._pending = self._pending, set()
                payload = "[]" if self._everywhere else msgspec.json.encode(sorted(lines)).decode()
                self._everywhere, self._sent_at = False, time.monotonic()
                await self._send(self._channel, payload if len(payload) < PAYLOAD_LIMIT else "[]")
        except Exception as error:  # a hint may be lost: workers poll
            log.debug("hint not sent: %s", error)
        finally:
            self._sending = None

    async def listen(self) -> AsyncIterator[Lines]:
        heard: asyncio.Queue[Lines] = asyncio.Queue()
        self._listeners.add(heard)
        if self.healthy:
            heard.put_nowait(EVERYWHERE)  # what was said before was said to nobody
        if self._ear is not None:
            self._ear.open()
        try:
            while True:
                lines = await heard.get()
                while not heard.empty():
                    more = heard.get_nowait()
                    lines = lines | more if lines and more else EVERYWHERE
                yield lines
        finally:
            self._listeners.discard(heard)
            if not self._listeners and self._ear is not None:
                self._ear.stop()

    def _on_hint(self, _channel: str, payload: str) -> None:
        if payload == WATCHING:
            self._by_others = True
            return
        try:
            lines = frozenset((str(q), int(p)) for q, p in msgspec.json.decode(payload))
        except (msgspec.DecodeError, TypeError, ValueError):
            lines = EVERYWHERE  # somebody's own NOTIFY: still a reason to look
        self._tell(lines)

    def _tell(self, lines: Lines) -> None:
        for listener in self._listeners:
            listener.put_nowait(lines)

    # --- watchers

    def news(self) -> None:
        self._wake_watchers()
        if (self._by_others or self._watchers) and self._sending_news is None:
            self._sending_news = asyncio.create_task(self._send_news(), name="dutiful news", context=Context())

    def watched(self, by_others: bool) -> None:
        self._by_others = by_others

    async def watch(self) -> AsyncIterator[None]:
        heard = asyncio.Event()
        self._watchers.add(heard)
        if self._news_ear is not None:
            self._news_ear.open()
        try:
            await self._say(self._channel, WATCHING)
            while True:
                await heard.wait()
                heard.clear()
                yield
        finally:
            self._watchers.discard(heard)
            if not self._watchers and self._news_ear is not None:
                self._news_ear.stop()

    async def _send_news(self) -> None:
        """One word for all that happens in the next moment; what happens while it is sent starts another."""
        await asyncio.sleep(NEWS_QUIET)
        self._sending_news = None
        await self._say(self._news_channel, self._name)

    async def _say(self, channel: str, word: str) -> None:
        try:
            await self._send(channel, word)
        except Exception as error:  # it may be lost: watchers look once a second
            log.debug("news not sent: %s", error)

    def _on_news(self, _channel: str, payload: str) -> None:
        if payload not in (self._name, WATCHING):
            self._wake_watchers()

    def _wake_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    async def close(self) -> None:
        stopped = [ear.stop() for ear in (self._ear, self._news_ear) if ear is not None]
        if self._sending_news is not None:
            self._sending_news.cancel()
        tasks = [task for task in (self._sending, self._sending_news, *stopped) if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=1)
