"""Those who may hear of any job, and how far they have all been told."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core.event import Event, JobView
from dutiful.watcher.history import LATE, PAGE
from dutiful.watcher.items import Gap
from dutiful.watcher.seen import Seen
from dutiful.watcher.stream import EventStream
from dutiful.watching import Stirred, Watching

# Cut short this often in a row, looks will not catch up: better a gap that is told of than to lag for ever.
BEHIND = 10
# A transaction that stays open for longer is not waited for: what it commits is told of when more happens to it.
REACH = timedelta(seconds=30)
_LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)


# What one look tells all streams together: to tell many of much takes longer than to find it out, and in a worker's
# process jobs wait meanwhile. Beyond it the next look reads less, and what cannot be told in time becomes a gap.
FAN_OUT, LEAST = 20_000, 25


class Look(msgspec.Struct, frozen=True):
    """One look at what stirred, for those who were there when it began."""

    stirred: Stirred
    seen: Seen
    fresh: dict[UUID, frozenset[str]]
    cutoff: datetime  # what happened earlier is no news of a job that nobody remembers
    told: set[EventStream]
    joining: dict[EventStream, "asyncio.Future[datetime]"]


class Broad:
    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._told: set[EventStream] = set()
        self._joining: dict[EventStream, asyncio.Future[datetime]] = {}
        self._seen = Seen()
        self._since: datetime | None = None  # where the next look begins
        self._began = self._latest = _LONG_AGO
        self._cut_short = 0
        self._page = PAGE

    @property
    def streams(self) -> set[EventStream]:
        return self._told | self._joining.keys()

    def add(self, stream: EventStream) -> "asyncio.Future[datetime]":
        """Let it take part from the end of the next look on, for what that one finds has happened before.

        The answer is a moment: nothing that it is told of happened earlier.
        """
        self._joining[stream] = asyncio.get_running_loop().create_future()
        return self._joining[stream]

    def remove(self, stream: EventStream) -> None:
        self._told.discard(stream)
        if joined := self._joining.pop(stream, None):
            joined.cancel()
        if not self.streams:
            self._since, self._cut_short, self._seen = None, 0, Seen()

    async def look(self) -> Look | None:
        """What is worth looking at; None if nobody asks."""
        # Whoever comes from now on waits for another look: this one may see less than has happened by then.
        told, joining, seen = set(self._told), dict(self._joining), self._seen
        if not told and not joining:
            return None
        if self._since is None:
            # A little earlier, so that whatever happened before it began is known as such when it comes to light.
            self._since = self._began = await self._now() - LATE
        since = self._since
        stirred = await self._watching.stirred(since, self._page)
        return Look(stirred, seen, seen.fresh(stirred.stirs), max(self._began, since - LATE), told, joining)

    def news(self, look: Look, views: Mapping[UUID, JobView]) -> tuple[list[Event], set[EventStream]]:
        """What was not told before, and to whom; from now on it counts as told."""
        if look.seen is not self._seen:  # everybody has left since then
            return [], set()
        events = look.seen.news(look.fresh, views, look.stirred.tombstones, look.cutoff)
        self._latest = max([self._latest, *(event.at for event in events)])
        return events, look.told & self._told

    def pace(self, told: int) -> None:
        """So many events were told, each as often as there are streams that want it."""
        if told > FAN_OUT:
            self._page = max(LEAST, self._page // 2)
        elif told < FAN_OUT // 4:
            self._page = min(PAGE, self._page * 2)

    async def go_on(self, look: Look) -> None:
        """Settle where the next look begins; whoever waited for this one takes part now."""
        if look.seen is not self._seen:
            return
        self._since = max(look.stirred.until, self._began, self._latest - REACH)
        self._cut_short = self._cut_short + 1 if look.stirred.more else 0
        if self._cut_short > BEHIND:
            self._since = max(self._since, await self._now())
            self._cut_short = 0
            for stream in self._told:
                stream.tell_of_gap(Gap(since=look.stirred.until, until=self._since))
        if self._cut_short == 0:
            for stream, joined in look.joining.items():
                if self._joining.pop(stream, None) is not None and not joined.done():
                    self._told.add(stream)
                    joined.set_result(max(self._began, self._since - LATE))

    def fail(self, error: Exception) -> None:
        """Whoever waits to take part hears what is wrong; the others are patient."""
        joining, self._joining = self._joining, {}
        for joined in joining.values():
            if not joined.done():
                joined.set_exception(error)

    async def _now(self) -> datetime:
        return (await self._watching.stirred(None, 1)).until
