"""Server-sent events of jobs, as a browser's EventSource reads them."""

import asyncio
import base64
import hashlib
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from dutiful.app import Dutiful, JobRefs
from dutiful.core.errors import StreamOverflow
from dutiful.core.events import Event
from dutiful.events import EventStream
from dutiful.events.items import Item, item_json

PING = 15.0
PIECE, PIECE_BYTES = 50, 64 * 1024  # how much is sent at once
RETRY = b"retry: 2000\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-store",
    "x-accel-buffering": "no",  # nginx would hold events back until its buffer is full
}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# A time, the microseconds from there to the last event that was read, and the marks of the events in between.
_FORM = re.compile(r"(\d{1,17})-(\d{1,17})-([\w~.]*)", re.ASCII)
# Beyond this, a reader of a busy stream gets some events twice, which their keys show.
MOST = 64


class Bookmark:
    """The position of a reader: a time before which all was read, and what was read since."""

    def __init__(self, since: datetime, read: dict[str, datetime] | None = None) -> None:
        self.since = since
        self._read = read or {}

    @classmethod
    def parse(cls, text: str | None) -> "Bookmark | None":
        """None if it is not a bookmark: then the reader starts over."""
        found = _FORM.fullmatch(text or "")
        if found is None:
            return None
        since = _EPOCH + int(found[1]) * _MICROSECOND
        latest = since + int(found[2]) * _MICROSECOND
        return cls(since, {mark: latest for mark in found[3].split(".") if mark})

    def has(self, event: Event) -> bool:
        return _mark(event) in self._read

    def move(self, since: datetime, event: Event) -> None:
        """Marks the event as read; no later event happened before `since`."""
        if since > self.since:
            self.since = since
            self._read = {mark: at for mark, at in self._read.items() if at >= since}
        self._read[_mark(event)] = event.at
        while len(self._read) > MOST:
            del self._read[next(iter(self._read))]

    def __str__(self) -> str:
        latest = max([self.since, *self._read.values()])
        numbers = [(self.since - _EPOCH) // _MICROSECOND, (latest - self.since) // _MICROSECOND]
        return "-".join([*map(str, numbers), ".".join(self._read)])


def _mark(event: Event) -> str:
    digest = hashlib.blake2b(event.job_id.bytes + event.key.encode(), digest_size=6).digest()
    return base64.urlsafe_b64encode(digest).decode().replace("-", "~")


async def event_stream(
    app: Dutiful,
    job: JobRefs = None,
    *,
    ping: float = PING,
    last_event_id: str | None = None,
    since: datetime | None = None,
    encoded: "Encoded | None" = None,
    **filters: Any,
) -> AsyncGenerator[bytes, None]:
    """The body of a response, piece by piece, with the filters of `app.events`; errors come before the first piece.

    It ends if its reader is too slow. A reader that reconnects with the last id that it has read misses nothing: it
    gets snapshots of given jobs, otherwise the events since then.
    """
    bookmark = Bookmark.parse(last_event_id) if job is None else None
    async with app.events(job, since=bookmark.since if bookmark else since, **filters) as stream:
        yield RETRY
        clock = asyncio.get_running_loop().time
        next_ping = clock() + ping
        while True:
            try:
                async with asyncio.timeout_at(next_ping):
                    items = await stream.several(PIECE)
            except TimeoutError:
                next_ping = clock() + ping
                yield _frame("ping", {"at": datetime.now(UTC)})
                continue
            except (StopAsyncIteration, StreamOverflow):
                return
            if stream.since is not None:
                bookmark = bookmark or Bookmark(stream.since)
            for piece in _pieces(items, stream, bookmark, encoded or ENCODED):
                yield piece
                del piece
                await asyncio.sleep(0)  # a socket that takes everything at once must not starve others


def _pieces(items: list[Item], stream: EventStream, bookmark: Bookmark | None, encoded: "Encoded") -> Iterator[bytes]:
    """Frames that the reader has not had yet; each has an id, because the connection may end anywhere.

    Takes the items away, because a reader may take its time over a piece, and they may be large.
    """
    frames: list[bytes] = []
    items.reverse()
    while items:
        item = items.pop()
        if isinstance(item, Event) and bookmark is not None and stream.since is not None:
            if bookmark.has(item):
                continue
            bookmark.move(stream.since, item)
            frames.append(f"id: {bookmark}\n".encode())
        frames.append(encoded.frame(item))
        del item
        if sum(map(len, frames)) > PIECE_BYTES:
            frames = [b"".join(frames)]
            yield frames.pop()
    if frames:
        yield b"".join(frames)


class Encoded:
    """A cache of the last few megabytes of frames, so that one is encoded once for all streams."""

    def __init__(
        self,
        shown: Callable[[Item], dict[str, Any]] = item_json,
        limit: int = 4 * 1024 * 1024,
        largest: int = 16 * 1024,
    ) -> None:
        self._shown = shown
        self._limit = limit
        self._largest = largest
        self._size = 0
        self._frames: OrderedDict[int, tuple[Item, bytes]] = (
            OrderedDict()
        )  # holds the item, so that its id stays unique

    def frame(self, item: Item) -> bytes:
        known = self._frames.get(id(item))
        if known is not None:
            return known[1]
        frame = _frame(item.type, self._shown(item))
        if len(frame) <= self._largest:
            self._frames[id(item)] = (item, frame)
            self._size += len(frame)
        while self._size > self._limit:
            _, (_, oldest) = self._frames.popitem(last=False)
            self._size -= len(oldest)
        return frame


ENCODED = Encoded()


def _frame(event: str, data: Any) -> bytes:
    return b"".join((f"event: {event}\ndata: ".encode(), msgspec.json.encode(data), b"\n\n"))
