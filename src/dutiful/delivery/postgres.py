"""Hints through LISTEN/NOTIFY: debounced, sent after the commit, received on a connection of their own."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import Context
from typing import Annotated, Any
from uuid import uuid4

import msgspec

from dutiful.core.errors import PayloadInvalid
from dutiful.core.json import check_name
from dutiful.delivery.base import EVERYWHERE, Hints, LocalSubscribers, QueueLevels
from dutiful.options import MAX_INT

log = logging.getLogger("dutiful.delivery")
# NOTIFY takes a database-wide lock at commit, so it is sent at most this often; the rest goes with the next.
HINT_INTERVAL = 0.01
# A commit may carry the hint a little earlier, because that costs less than to send it afterwards by itself.
CARRY_INTERVAL = 0.008
EVENT_INTERVAL = 0.1
_NEVER = float("-inf")  # before any clock: a monotonic one begins near zero when the machine does
PAYLOAD_LIMIT = 7_900
# A new watcher sends this to workers, so that they notify it from now on and not only after their next heartbeat.
WATCHING = "watching"
FIRST_RETRY, LONGEST_RETRY = 0.1, 5.0
# A connection that a firewall dropped gives no sign, so it is probed this often.
PROBE_INTERVAL = 60.0
# Notifications within a second: more are a flood, which any role that may connect can send, and which a server with a
# disk cannot commit one by one. To read it would take all of a process' time, so it looks once a second instead.
FLOOD = 5_000
FLOOD_REST, FLOOD_LOGGED = 1.0, 60.0


_levels = msgspec.json.Decoder(list[tuple[str, Annotated[int, msgspec.Meta(ge=-MAX_INT - 1, le=MAX_INT)]]])


def read_hint(payload: str) -> QueueLevels:
    """The queue levels of a NOTIFY, which any role that may connect can send; of any other payload, EVERYWHERE."""
    try:
        return frozenset((check_name(queue, "queue"), priority) for queue, priority in _levels.decode(payload))
    except (msgspec.DecodeError, PayloadInvalid, RecursionError, UnicodeError):
        return EVERYWHERE


class PostgresDelivery:
    """`send` notifies a channel on the store's own connections; `connect` opens one that can LISTEN.

    LISTEN does not work through a transaction pooler: then `connect` is None, workers poll and watchers poll each
    second. Workers listen on `channel`. Watchers listen on it, too, because it announces new jobs, and on a second
    channel for all other changes.
    """

    def __init__(
        self, channel: str, send: Callable[[str, str], Awaitable[None]], connect: Callable[[], Awaitable[Any]] | None
    ) -> None:
        self._channel = channel
        self._event_channel = f"{channel}_jobs"
        self._name = uuid4().hex  # marks our own notifications, of which our watchers already know
        self._send = send
        self._local = LocalSubscribers()
        self._remote_watchers = False
        self._pending: set[tuple[str, int]] = set()
        self._pending_everywhere = False
        self._sent_at = _NEVER
        self._commit_began: float | None = None
        self._commit_s = 0.0  # how long the longest of the last commits took, in seconds
        self._due: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._sending_event: asyncio.Task[None] | None = None
        both = (self._channel, self._event_channel)
        self._hints = connect and Listener(connect, both[:1], self._on_hint, lambda: self._local.hint(EVERYWHERE))
        self._events = connect and Listener(connect, both, self._on_event, self._local.wake_watchers)

    @property
    def healthy(self) -> bool:
        return self._hints is not None and self._hints.healthy

    def hint_in_commit(self, levels: QueueLevels, *, soon: bool = True) -> bool:
        now = self._commit_began = time.monotonic()
        # Where commits take milliseconds, the hint would be due before this one ends, and be a commit of its own.
        passed = now - self._sent_at
        early = passed < CARRY_INTERVAL and passed + self._commit_s < HINT_INTERVAL
        if self._sending is not None or early:
            return False
        if self._pending_everywhere or not self._pending <= (levels if soon else frozenset()):
            return False
        # Now, not when it has been committed: what is added meanwhile may be of a later commit.
        self._pending.clear()
        self._sent_at = now
        return True

    def hint(self, levels: QueueLevels, *, sent: bool = False, known_to: object = None) -> None:
        self._local.hint(levels, known_to)
        if self._commit_began is not None:
            took, self._commit_began = time.monotonic() - self._commit_began, None
            self._commit_s = max(took, self._commit_s * 0.9)
        if sent:
            return
        self._pending |= levels
        self._pending_everywhere = self._pending_everywhere or not levels
        if self._sending is None and self._due is None:
            self._wait_until_due()

    def _wait_until_due(self) -> None:
        wait = max(0.0, self._sent_at + HINT_INTERVAL - time.monotonic())
        self._due = asyncio.get_running_loop().call_later(wait, self._on_due, context=Context())

    def _on_due(self) -> None:
        """Sends what is pending, unless a commit has carried it or will soon."""
        self._due = None
        if not (self._pending or self._pending_everywhere):
            return
        if time.monotonic() - self._sent_at < CARRY_INTERVAL:
            self._wait_until_due()
        else:
            self._sending = asyncio.create_task(self._send_pending(), name="dutiful notify", context=Context())

    async def _send_pending(self) -> None:
        try:
            while self._pending or self._pending_everywhere:
                await asyncio.sleep(max(0.0, self._sent_at + HINT_INTERVAL - time.monotonic()))
                levels, self._pending = self._pending, set()
                # Without levels, others take our name for a hint at all of them, and we do not take it for one.
                payload = self._name if self._pending_everywhere else msgspec.json.encode(sorted(levels)).decode()
                self._pending_everywhere, self._sent_at = False, time.monotonic()
                await self._send(self._channel, payload if len(payload) < PAYLOAD_LIMIT else self._name)
        except Exception as error:  # a hint may be lost: workers poll
            log.debug("hint not sent: %s", error)
        finally:
            self._sending = None

    async def listen(self, owner: object = None) -> AsyncIterator[QueueLevels]:
        hints = Hints(owner)
        self._local.listeners.add(hints)
        if self.healthy:
            hints.put(EVERYWHERE)  # earlier hints did not reach this listener
        if self._hints is not None:
            self._hints.start()
        try:
            while True:
                yield await hints.next()
        finally:
            self._local.listeners.discard(hints)
            if not self._local.listeners and self._hints is not None:
                self._hints.stop()

    def _on_hint(self, _channel: str, payload: str) -> None:
        if payload == WATCHING:
            self._remote_watchers = True
        elif payload != self._name:  # our own listeners have had that hint
            self._local.hint(read_hint(payload))

    # --- watchers

    def notify_watchers(self) -> None:
        self._local.wake_watchers()
        if (self._remote_watchers or self._local.watchers) and self._sending_event is None:
            self._sending_event = asyncio.create_task(self._send_event(), name="dutiful event", context=Context())

    def set_remote_watchers(self, present: bool) -> None:
        self._remote_watchers = present

    async def watch(self) -> AsyncIterator[None]:
        changed = asyncio.Event()
        self._local.watchers.add(changed)
        if self._events is not None:
            self._events.start()
        try:
            await self._try_send(self._channel, WATCHING)
            while True:
                await changed.wait()
                changed.clear()
                yield
        finally:
            self._local.watchers.discard(changed)
            if not self._local.watchers and self._events is not None:
                self._events.stop()

    async def _send_event(self) -> None:
        """Sends one notification for all changes of the next moment; a change while it is sent starts another."""
        await asyncio.sleep(EVENT_INTERVAL)
        self._sending_event = None
        await self._try_send(self._event_channel, self._name)

    async def _try_send(self, channel: str, payload: str) -> None:
        try:
            await self._send(channel, payload)
        except Exception as error:  # it may be lost: watchers poll once a second
            log.debug("event notification not sent: %s", error)

    def _on_event(self, _channel: str, payload: str) -> None:
        if payload not in (self._name, WATCHING):
            self._local.wake_watchers()

    async def close(self) -> None:
        stopped = [listener.stop() for listener in (self._hints, self._events) if listener is not None]
        if self._sending_event is not None:
            self._sending_event.cancel()
        if self._due is not None:
            self._due.cancel()
            self._sent_at = _NEVER
            self._on_due()
        tasks = [task for task in (self._sending, self._sending_event, *stopped) if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=1)


class Listener:
    """Passes channel and payload to `on_notify`; calls `on_connect` after every gap, the first included."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        channels: Sequence[str],
        on_notify: Callable[[str, str], None],
        on_connect: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._channels = channels
        self._on_notify = on_notify
        self._on_connect = on_connect
        self._task: asyncio.Task[None] | None = None
        self._flood_logged = _NEVER
        self._counted_since = _NEVER
        self._count = 0
        self.healthy = False

    def start(self) -> None:
        """Does nothing if it has been started already."""
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="dutiful listen")

    def stop(self) -> "asyncio.Task[None] | None":
        """Returns the cancelled task, for callers that wait for its end."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    async def _listen(self) -> None:
        pause = FIRST_RETRY
        while True:
            connection = None
            self._counted_since, self._count = _NEVER, 0
            try:
                connection = await self._connect()
                gone = asyncio.Event()
                connection.add_termination_listener(lambda _, gone=gone: gone.set())
                for channel in self._channels:
                    await connection.add_listener(channel, self._received)
                self.healthy = True
                pause = FIRST_RETRY
                self._on_connect()
                while not gone.is_set():
                    try:
                        async with asyncio.timeout(PROBE_INTERVAL):  # wait_for may forget a cancellation
                            await gone.wait()
                    except TimeoutError:
                        await connection.execute("select 1", timeout=10)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.debug("listener: %s", error)
            finally:
                self.healthy = False
                if connection is not None:
                    connection.terminate()
            await asyncio.sleep(FLOOD_REST if self._count > FLOOD else pause)
            pause = min(pause * 2, LONGEST_RETRY)

    def _received(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        now = time.monotonic()
        if now - self._counted_since >= 1:
            self._counted_since, self._count = now, 0
        self._count += 1
        if self._count <= FLOOD:
            self._on_notify(channel, payload)
        elif not connection.is_closed():
            if now - self._flood_logged >= FLOOD_LOGGED:
                self._flood_logged = now
                log.warning(
                    "over %s notifications came within a second on channel %s, the last one from process %s of the "
                    "database; they are not read, and jobs are looked for once a second until that ends: see "
                    "pg_stat_activity for whose process that is",
                    f"{FLOOD:,}",
                    channel,
                    pid,
                )
            connection.terminate()  # with all that has not been read yet
