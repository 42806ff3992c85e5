"""One subscriber's stream: a bounded buffer that neither blocks the watcher nor grows without end."""

import asyncio
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Self
from uuid import UUID

from dutiful.core.errors import StoreUnavailable, StreamOverflow
from dutiful.core.events import Event, EventType
from dutiful.events.history import History
from dutiful.events.items import Gap, Item, Subscription
from dutiful.events.results import LargeResults, lacks_result

BUFFER = 256
RETRY = 1.0  # seconds until a result is read again after the store did not answer


class EventStream:
    """`async for item in stream` yields snapshots first, then every event since, once each.

    It ends when the app is closed or all its jobs are deleted; a reader that is too slow gets what was buffered and
    then StreamOverflow.
    """

    def __init__(self, subscription: Subscription, limit: int = BUFFER, *, results: LargeResults | None = None) -> None:
        self.subscription = subscription
        self.since: datetime | None = None  # of the last item read: no item still to come happened earlier
        self._limit = limit
        self._first: deque[tuple[Item, datetime | None]] = deque()
        self._history: History | None = None
        self._reading: asyncio.Task[list[Event] | None] | None = None
        self._results = results
        self._lacking: tuple[Item, datetime | None] | None = None  # what comes next, without its results
        self._completing: asyncio.Task[Item | None] | None = None
        self._live_from: datetime | None = None
        self._from_history: set[tuple[UUID, str]] = set()
        self._buffer: OrderedDict[tuple[UUID, str], tuple[Item, datetime | None]] = OrderedDict()
        self._changed = asyncio.Event()
        self._ended = False
        self.dropped = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while (item := self._next_available()) is None:
            if self._lacking is not None:
                await self._complete(*self._lacking)
            elif self._history is not None:
                await self._read_history(self._history)
            elif self.dropped:
                raise StreamOverflow(
                    f"more than {self._limit} events waited to be read, so the rest were dropped: subscribe again, "
                    "look up what was missed, and read without long pauses"
                )
            elif self._ended:
                raise StopAsyncIteration
            else:
                self._changed.clear()
                await self._changed.wait()
        return item

    async def several(self, most: int) -> list[Item]:
        """Waits for one item; returns it with up to `most` - 1 more that are available by then."""
        items = [await anext(self)]
        while len(items) < most and (item := self._next_available()) is not None:
            items.append(item)
        return items

    def _next_available(self) -> Item | None:
        while self._lacking is None and (found := self._pop()) is not None:
            item, since = found
            if self._results is not None and lacks_result(item):
                self._lacking = found
            else:
                self.since = since
                return item
        return None

    def _pop(self) -> tuple[Item, datetime | None] | None:
        if self._first:
            return self._first.popleft()
        while self._buffer and self._history is None:  # history comes first
            _, (item, since) = self._buffer.popitem(last=False)
            if not (isinstance(item, Event) and (item.job_id, item.key) in self._from_history):
                return item, since
        return None

    async def _complete(self, item: Item, since: datetime | None) -> None:
        """Puts the large results of the next item into it; leaves the item out if they have been deleted meanwhile."""
        if self._completing is None:
            self._completing = asyncio.create_task(self._with_results(item), name="dutiful results")
        completing = self._completing
        await asyncio.wait([completing])  # as of history
        if completing is not self._completing:
            return
        self._completing = None
        complete = completing.result()
        self._lacking = None
        if complete is not None:
            self._first.appendleft((complete, since))

    async def _with_results(self, item: Item) -> Item | None:
        assert self._results is not None
        while True:
            try:
                return await self._results.put_into(item)
            except StoreUnavailable as error:  # any other error would only come again: the reader gets it
                if self._ended:
                    raise StreamOverflow(
                        "the stream has ended before a large result was read, and the store does not answer: "
                        "look its job up"
                    ) from error
            await asyncio.sleep(RETRY)

    async def _read_history(self, history: History) -> None:
        since = history.cutoff
        if self._reading is None:
            self._reading = asyncio.create_task(history.page(), name="dutiful history")
        reading = self._reading
        # A reader that gives up for a while, to send a ping, must not lose its turn.
        await asyncio.wait([reading])
        if reading is not self._reading:  # it was another reader's, or the stream was closed
            return
        self._reading = None
        page = reading.result()
        if page is None:
            self._history = None
            return
        for event in page:
            if self.subscription.wants(event):
                self._first.append((event, since))
                if self._live_from is None or event.at >= self._live_from:
                    self._from_history.add((event.job_id, event.key))  # it may be in the buffer, too

    # --- for the watcher

    def close(self) -> None:
        """Stops what it reads; its reader has left, or is about to."""
        for task in (self._reading, self._completing):
            if task is not None:
                task.cancel()
        self._history = self._reading = self._lacking = self._completing = None

    def begin(self, items: Sequence[Item]) -> None:
        """Puts these before all others; they do not count towards the limit."""
        self._first.extend((item, None) for item in items)

    def read_history_first(self, history: History, live_from: datetime) -> None:
        """Puts history before live events, none of which happened before `live_from`."""
        self._history, self._live_from = history, live_from

    def offer(self, events: Iterable[Event], since: datetime | None) -> int:
        """Buffers the events that it wants and returns how many; of a job's progress, the last of each phase is kept.

        The events of one poll are buffered whole if there is room for any of them.
        """
        full, taken = len(self._buffer) >= self._limit, 0
        for event in events:
            if self.subscription.wants(event):
                mark = "" if event.type is EventType.PROGRESS else event.key
                if event.type is EventType.PHASE_COMPLETED:
                    self._keep_progress(event.job_id)
                self._put((event.job_id, mark), event, since, full=full)
                taken += 1
        return taken

    def _keep_progress(self, job_id: UUID) -> None:
        """Lets no later report replace the one that is buffered, because its phase ends here."""
        last = self._buffer.pop((job_id, ""), None)
        if last is not None and isinstance(last[0], Event):
            self._buffer[job_id, last[0].key] = last

    def add_gap(self, gap: Gap) -> None:
        self._put((UUID(int=0), ""), gap, gap.until, full=len(self._buffer) >= self._limit)

    def _put(self, key: tuple[UUID, str], item: Item, since: datetime | None, *, full: bool) -> None:
        if full and key not in self._buffer:
            self.dropped = True
        if not self.dropped:
            self._buffer.pop(key, None)  # so that its replacement stands behind what happened in between
            self._buffer[key] = (item, since)
        self._changed.set()

    def end(self) -> None:
        """Ends the stream after what is buffered."""
        self._ended = True
        self._changed.set()


class EventIndex:
    """Indexes the events of one poll, so that a stream of one tenant or correlation need not filter all of them."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._by_tenant: defaultdict[str | None, list[Event]] = defaultdict(list)
        self._by_correlation: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            self._by_tenant[event.tenant].append(event)
            self._by_correlation[event.correlation_id].append(event)

    def candidates(self, subscription: Subscription) -> Sequence[Event]:
        """Returns a superset of the events that the subscription wants."""
        if subscription.correlation_id is not None:
            return self._by_correlation.get(subscription.correlation_id, ())
        if subscription.tenant is not None:
            return self._by_tenant.get(subscription.tenant, ())
        return self._events
