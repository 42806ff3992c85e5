"""One subscriber's stream: a bounded buffer that neither blocks the watcher nor grows without end."""

import asyncio
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Self
from uuid import UUID

from dutiful.core.errors import StreamOverflow
from dutiful.core.event import Event, EventType
from dutiful.watcher.history import History
from dutiful.watcher.items import Gap, Item, Wanted

BUFFER = 256


class EventStream:
    """`async for item in stream` yields snapshots first, then every event since, once each.

    It ends when the app is closed or all the jobs it is about are deleted; a reader that is too slow gets what was
    buffered and then StreamOverflow.
    """

    def __init__(self, wanted: Wanted, limit: int = BUFFER) -> None:
        self.wanted = wanted
        self.since: datetime | None = None  # of what was read last: nothing that is still to come happened earlier
        self._limit = limit
        self._first: deque[tuple[Item, datetime | None]] = deque()
        self._past: History | None = None
        self._live_from: datetime | None = None
        self._told: set[tuple[UUID, str]] = set()
        self._buffer: OrderedDict[tuple[UUID, str], tuple[Item, datetime | None]] = OrderedDict()
        self._heard = asyncio.Event()
        self._ended = False
        self.dropped = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while (item := self._here()) is None:
            if self._past is not None:
                await self._read_past(self._past)
            elif self.dropped:
                raise StreamOverflow(
                    f"more than {self._limit} events waited to be read, so the rest were dropped: subscribe again, "
                    "look up what was missed, and read without long pauses"
                )
            elif self._ended:
                raise StopAsyncIteration
            else:
                self._heard.clear()
                await self._heard.wait()
        return item

    async def several(self, most: int) -> list[Item]:
        """The next one, and up to `most` in all of those that are here by then."""
        items = [await anext(self)]
        while len(items) < most and (item := self._here()) is not None:
            items.append(item)
        return items

    def _here(self) -> Item | None:
        """The next one that nobody has to wait for."""
        if self._first:
            item, self.since = self._first.popleft()
            return item
        while self._buffer and self._past is None:  # the past comes first
            _, (item, self.since) = self._buffer.popitem(last=False)
            if not (isinstance(item, Event) and (item.job_id, item.key) in self._told):
                return item
        return None

    async def _read_past(self, past: History) -> None:
        since = past.cutoff
        page = await past.page()
        if page is None:
            self._past = None
            return
        for event in page:
            if self.wanted.wants(event):
                self._first.append((event, since))
                if self._live_from is None or event.at >= self._live_from:
                    self._told.add((event.job_id, event.key))  # it may be in the buffer, too

    # --- for the watcher

    def begin(self, items: Sequence[Item]) -> None:
        """Read these first; they do not count as waiting."""
        self._first.extend((item, None) for item in items)

    def recall(self, past: History, live_from: datetime) -> None:
        """Read the past first; nothing that is offered happened before `live_from`."""
        self._past, self._live_from = past, live_from

    def offer(self, events: Iterable[Event], since: datetime | None) -> int:
        """Let it read those that it wants, and say how many; of several reports of a job's progress only the last one.

        What one look has found comes at once, so it is taken whole by whoever has room for any of it.
        """
        full, taken = len(self._buffer) >= self._limit, 0
        for event in events:
            if self.wanted.wants(event):
                mark = "" if event.type is EventType.PROGRESS else event.key
                self._put((event.job_id, mark), event, since, full=full)
                taken += 1
        return taken

    def tell_of_gap(self, gap: Gap) -> None:
        self._put((UUID(int=0), ""), gap, gap.until, full=len(self._buffer) >= self._limit)

    def _put(self, key: tuple[UUID, str], item: Item, since: datetime | None, *, full: bool) -> None:
        if full and key not in self._buffer:
            self.dropped = True
        if not self.dropped:
            self._buffer.pop(key, None)  # so that what takes its place stands behind what happened in between
            self._buffer[key] = (item, since)
        self._heard.set()

    def end(self) -> None:
        """There is nothing to come; what is buffered can still be read."""
        self._ended = True
        self._heard.set()


class Shares:
    """The events of one look, sorted out so that a stream of one tenant or correlation need not be asked of all."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._by_tenant: defaultdict[str | None, list[Event]] = defaultdict(list)
        self._by_correlation: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            self._by_tenant[event.tenant].append(event)
            self._by_correlation[event.correlation_id].append(event)

    def of(self, wanted: Wanted) -> Sequence[Event]:
        """Among these are all that fit."""
        if wanted.correlation_id is not None:
            return self._by_correlation.get(wanted.correlation_id, ())
        if wanted.tenant is not None:
            return self._by_tenant.get(wanted.tenant, ())
        return self._events
