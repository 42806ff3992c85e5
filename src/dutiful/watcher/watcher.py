"""The one reader of events in a process: looks when there is news, and tells every subscriber what it wants to hear."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from contextvars import Context
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from dutiful.core import ids
from dutiful.core.errors import DutifulError, JobNotFound
from dutiful.core.event import Event, facts
from dutiful.delivery import Delivery
from dutiful.watcher.broad import Broad
from dutiful.watcher.history import History, views_of
from dutiful.watcher.items import Snapshot, Wanted, check_since
from dutiful.watcher.singles import Singles
from dutiful.watcher.stream import EventStream, Shares
from dutiful.watching import Tombstone, Watching

log = logging.getLogger("dutiful.watcher")
LOOK = 1.0  # how long a lost hint can delay an event
SOONEST = 0.05
SHARE = 20  # a look is followed by a pause of this many times its length
TTL, RENEW = timedelta(seconds=30), 10.0
LAST_WORDS = 2.0


class Watcher:
    """Runs while there are subscribers, and costs nothing without them."""

    def __init__(self, watching: Watching, delivery: Delivery) -> None:
        self._watching = watching
        self._delivery = delivery
        self._singles = Singles()
        self._broad = Broad(watching)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._renewed_at = -RENEW
        self._away = False
        self._last = False  # the next look is the last one

    @property
    def streams(self) -> set[EventStream]:
        return self._singles.streams | self._broad.streams

    @asynccontextmanager
    async def subscribe(
        self, wanted: Wanted, *, snapshot: bool = True, since: datetime | None = None
    ) -> AsyncIterator[EventStream]:
        """A stream from now on, or with `since` from then on; leaving the block frees all that it took."""
        check_since(since)
        stream = EventStream(wanted)
        try:
            if wanted.jobs is None:
                await self._join(stream, since)
            else:
                await self._join_jobs(stream, wanted.jobs, snapshot, since)
            yield stream
        finally:
            await self._leave(stream)

    async def _join(self, stream: EventStream, since: datetime | None) -> None:
        joined = self._broad.add(stream)
        self._start()
        live_from = await joined
        if since is not None:
            stream.recall(History(self._watching, since), live_from)

    async def _join_jobs(
        self, stream: EventStream, jobs: Iterable[UUID], snapshot: bool, since: datetime | None
    ) -> None:
        views = await views_of(self._watching, jobs)
        for job_id in jobs:
            if job_id not in views or not stream.wanted.admits(views[job_id].job):
                raise JobNotFound(f"there is no job {ids.public(job_id)}: it never was, or retention has removed it")
        if snapshot:
            stream.begin([Snapshot.of(view) for view in views.values()])
        if since is not None:
            past = (event for view in views.values() for event in facts(view) if event.at >= since)
            stream.begin([event for event in sorted(past, key=lambda e: e.at) if stream.wanted.wants(event)])
        for view in views.values():
            self._singles.add(stream, view)
        if views:
            self._start()
        else:
            stream.end()

    async def _leave(self, stream: EventStream) -> None:
        self._forget(stream)
        running = self._running
        if running is not None and not self.streams:
            self._idle.set()
            self._wake.set()
            await asyncio.wait([running], timeout=LAST_WORDS)
            if not self.streams:
                running.cancel()  # the store does not answer
                self._running = None  # whoever joins from now on starts another

    def _forget(self, stream: EventStream) -> None:
        stream.end()
        self._singles.remove(stream)
        self._broad.remove(stream)

    async def close(self) -> None:
        """End all streams, after a last look: their readers get what has happened until now, and no more."""
        if self.streams and self._running is not None:
            self._last = True
            self._idle.set()
            self._wake.set()
            await asyncio.wait([self._running], timeout=LAST_WORDS)
        for stream in self.streams:
            await self._leave(stream)

    # --- looking

    def _start(self) -> None:
        self._wake.set()
        self._idle.clear()
        if self._running is None:
            # In no context: it works for others, too, than the one who happens to come first.
            self._running = asyncio.create_task(self._run(), name="dutiful watcher", context=Context())

    async def _run(self) -> None:
        listener_id = uuid4()  # another one each time: the last run may still be signing off
        self._renewed_at = -RENEW
        hearing: asyncio.Task[None] | None = None
        try:
            while self.streams:
                self._wake.clear()
                began, last = time.monotonic(), self._last
                await self._look_safely(listener_id)
                if last:
                    return
                if hearing is None:  # not sooner, for workers are to find our name when they hear of us
                    hearing = asyncio.create_task(self._hear(), name="dutiful news")
                # Bounded: a look that took long because the store was slow must not silence everybody for minutes.
                await _wait(self._idle, min(LOOK, max(SOONEST, SHARE * (time.monotonic() - began))))
                await _wait(self._wake, LOOK)
        finally:
            if self._running is asyncio.current_task():
                self._running = None
            if hearing is not None:
                hearing.cancel()
            await self._sign_off(listener_id)

    async def _hear(self) -> None:
        async for _ in self._delivery.watch():
            self._wake.set()

    async def _sign_off(self, listener_id: UUID) -> None:
        try:
            await asyncio.wait_for(self._watching.unlisten(listener_id), LAST_WORDS)
        except (DutifulError, TimeoutError) as error:  # it is forgotten in a while anyway
            log.debug("could not sign off: %s", error)

    async def _look_safely(self, listener_id: UUID) -> None:
        """A store that is away is told of once; when it is back, the next look finds all that happened meanwhile."""
        try:
            if time.monotonic() - self._renewed_at >= RENEW:
                await self._watching.listen(listener_id, TTL)
                self._renewed_at = time.monotonic()
            await self._look()
        except Exception as error:
            if not self._away:
                log.warning("events wait: %s", error, exc_info=not isinstance(error, DutifulError))
            self._away = True
            self._broad.fail(error)
        else:
            if self._away:
                log.info("events go on")
            self._away = False

    async def _look(self) -> None:
        audience, look = self._singles.audience(), await self._broad.look()
        views = await views_of(self._watching, audience.keys() | (look.fresh.keys() if look else set()))
        graves = await self._graves(self._singles.missing(audience, views))
        # From here to the last offer nothing may fail or wait: what counts as told is told.
        told: defaultdict[EventStream, list[Event]] = defaultdict(list)
        for stream, event in self._singles.news(audience, views, graves):
            told[stream].append(event)
        for stream, events in told.items():
            stream.offer(sorted(events, key=lambda event: event.at), None)
        if look is not None:
            news, streams = self._broad.news(look, views)
            shares = Shares(news)
            self._broad.pace(sum(stream.offer(shares.of(stream.wanted), look.cutoff) for stream in streams))
        for stream in [*self._singles.bereft(), *(stream for stream in self.streams if stream.dropped)]:
            self._forget(stream)
        if look is not None:
            await self._broad.go_on(look)
            if look.stirred.more:
                self._wake.set()

    async def _graves(self, missing: set[UUID]) -> dict[UUID, Tombstone]:
        found = await self._watching.tombstones(list(missing)) if missing else []
        return {tombstone.job_id: tombstone for tombstone in found}


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
