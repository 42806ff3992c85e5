"""The one reader of events in a process: polls when jobs have changed, and sends each subscriber what it wants."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from contextvars import Context
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from dutiful.core.errors import DutifulError
from dutiful.core.events import Event, events_of
from dutiful.core.job import job_not_found
from dutiful.delivery.base import Delivery
from dutiful.events.feeds import AllJobsFeed, SingleJobsFeed
from dutiful.events.history import History, HistoryTurns, load_marks, load_views
from dutiful.events.items import Snapshot, Subscription, check_since
from dutiful.events.results import LargeResults
from dutiful.events.stream import EventIndex, EventStream
from dutiful.store.events import EventStore, Tombstone

log = logging.getLogger("dutiful.events")
POLL_INTERVAL = 1.0  # how long a lost notification can delay an event
MIN_PAUSE = 0.05
PAUSE_FACTOR = 20  # a poll is followed by a pause of this many times its length
TTL, RENEW = timedelta(seconds=30), 10.0
STOP_TIMEOUT = 2.0
READERS = 4  # half of the connections that a store has by default


class Watcher:
    """Runs while there are subscribers, and costs nothing without them."""

    def __init__(self, store: EventStore, delivery: Delivery, readers: int = READERS) -> None:
        """`readers`: how many streams may read history, or large results, at a time."""
        self._store = store
        self._turns = HistoryTurns(readers)
        self._results = LargeResults(store, self._turns)
        self._delivery = delivery
        self._singles = SingleJobsFeed()
        self._all = AllJobsFeed(store)
        self._wake = asyncio.Event()
        self._stop_pause = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._renewed_at = -RENEW
        self._failing = False
        self._closing = False  # the next poll is the last one

    @property
    def streams(self) -> set[EventStream]:
        return self._singles.streams | self._all.streams

    @asynccontextmanager
    async def subscribe(
        self, subscription: Subscription, *, snapshot: bool = True, since: datetime | None = None
    ) -> AsyncIterator[EventStream]:
        """Opens a stream from now on, or from `since` on; leaving the block closes it."""
        check_since(since)
        stream = EventStream(subscription, results=self._results)
        try:
            if subscription.jobs is None:
                await self._join(stream, since)
            else:
                await self._join_jobs(stream, subscription.jobs, snapshot, since)
            yield stream
        finally:
            stream.close()
            await self._leave(stream)

    async def _join(self, stream: EventStream, since: datetime | None) -> None:
        joined = self._all.add(stream)
        self._start()
        live_from = await joined
        if since is not None:
            history = History(self._store, since, self._turns, stream.subscription.tenant)
            stream.read_history_first(history, live_from)

    async def _join_jobs(
        self, stream: EventStream, jobs: Iterable[UUID], snapshot: bool, since: datetime | None
    ) -> None:
        views = await load_views(self._store, jobs)
        for job_id in jobs:
            if job_id not in views or not stream.subscription.admits(views[job_id].job):
                raise job_not_found(job_id)
        if snapshot:
            stream.begin([Snapshot.of(view) for view in views.values()])
        if since is not None:
            past = (event for view in views.values() for event in events_of(view) if event.at >= since)
            stream.begin([event for event in sorted(past, key=lambda e: e.at) if stream.subscription.wants(event)])
        for view in views.values():
            self._singles.add(stream, view)
        if views:
            self._start()
        else:
            stream.end()

    async def _leave(self, stream: EventStream) -> None:
        self._remove(stream)
        running = self._running
        if running is not None and not self.streams:
            self._stop_pause.set()
            self._wake.set()
            await asyncio.wait([running], timeout=STOP_TIMEOUT)
            if not self.streams:
                running.cancel()  # the store does not answer
                self._running = None  # the next subscriber starts another

    def _remove(self, stream: EventStream) -> None:
        stream.end()
        self._singles.remove(stream)
        self._all.remove(stream)

    async def close(self) -> None:
        """Ends all streams after a last poll: their readers get what has happened until now."""
        if self.streams and self._running is not None:
            self._closing = True
            self._stop_pause.set()
            self._wake.set()
            await asyncio.wait([self._running], timeout=STOP_TIMEOUT)
        for stream in self.streams:
            await self._leave(stream)

    # --- polling

    def _start(self) -> None:
        self._wake.set()
        self._stop_pause.clear()
        if self._running is None:
            # In an empty context, because it works for all subscribers and not only for the first.
            self._running = asyncio.create_task(self._run(), name="dutiful watcher", context=Context())

    async def _run(self) -> None:
        listener_id = uuid4()  # a new one each time: the last run may still be unregistering
        self._renewed_at = -RENEW
        listening: asyncio.Task[None] | None = None
        try:
            while self.streams:
                self._wake.clear()
                began, last = time.monotonic(), self._closing
                await self._poll_safely(listener_id)
                if last:
                    return
                if listening is None:  # not sooner: workers must find our registration when they are notified of us
                    listening = asyncio.create_task(self._listen(), name="dutiful watch")
                # Bounded, because one slow answer of the store must not delay all events for minutes.
                pause = min(POLL_INTERVAL, max(MIN_PAUSE, PAUSE_FACTOR * (time.monotonic() - began)))
                await _wait(self._stop_pause, pause)
                await _wait(self._wake, POLL_INTERVAL)
        finally:
            if self._running is asyncio.current_task():
                self._running = None
            if listening is not None:
                listening.cancel()
            await self._unregister(listener_id)

    async def _listen(self) -> None:
        async for _ in self._delivery.watch():
            self._wake.set()

    async def _unregister(self, listener_id: UUID) -> None:
        try:
            await asyncio.wait_for(self._store.unlisten(listener_id), STOP_TIMEOUT)
        except (DutifulError, TimeoutError) as error:  # its registration expires anyway
            log.debug("could not unregister: %s", error)

    async def _poll_safely(self, listener_id: UUID) -> None:
        """Logs once that the store does not answer; the first poll after that finds all that happened meanwhile."""
        try:
            if time.monotonic() - self._renewed_at >= RENEW:
                await self._store.listen(listener_id, TTL)
                self._renewed_at = time.monotonic()
            await self._poll()
        except Exception as error:
            if not self._failing:
                log.warning("events are delayed: %s", error, exc_info=not isinstance(error, DutifulError))
            self._failing = True
            self._all.fail_joining(error)
        else:
            if self._failing:
                log.info("events are sent again")
            self._failing = False

    async def _poll(self) -> None:
        subscribers, batch = self._singles.subscribers(), await self._all.poll()
        marks = await load_marks(self._store, subscribers)
        changed = self._singles.changed(subscribers, marks)
        views = await load_views(self._store, changed | (batch.unseen.keys() if batch else set()))
        tombstones = await self._tombstones(self._singles.missing(subscribers, marks))
        # From here to the last offer nothing may fail or wait: what counts as sent is sent.
        by_stream: defaultdict[EventStream, list[Event]] = defaultdict(list)
        for stream, event in self._singles.new_events(subscribers, marks, views, tombstones):
            by_stream[stream].append(event)
        for stream, events in by_stream.items():
            stream.offer(sorted(events, key=lambda event: event.at), None)
        if batch is not None:
            events, streams = self._all.new_events(batch, views)
            index = EventIndex(events)
            sent = sum(stream.offer(index.candidates(stream.subscription), batch.cutoff) for stream in streams)
            self._all.adjust_page(sent)
        for stream in [*self._singles.without_jobs(), *(stream for stream in self.streams if stream.dropped)]:
            self._remove(stream)
        if batch is not None:
            await self._all.advance(batch)
            if batch.changes.more:
                self._wake.set()

    async def _tombstones(self, missing: set[UUID]) -> dict[UUID, Tombstone]:
        found = await self._store.tombstones(list(missing)) if missing else []
        return {tombstone.job_id: tombstone for tombstone in found}


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):  # wait_for may forget a cancellation
            await event.wait()
    except TimeoutError:
        return
