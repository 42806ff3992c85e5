"""Server-sent events: how jobs fare, as a browser's EventSource reads it."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from dutiful.app import Dutiful, JobRefs
from dutiful.core.errors import StreamOverflow
from dutiful.core.event import Event
from dutiful.watcher import EventStream
from dutiful.watcher.items import Item
from dutiful.watcher.plain import plain
from dutiful.web.bookmark import Bookmark

PING = 15.0
PIECE, PIECE_BYTES = 50, 64 * 1024  # how much is sent as one
RETRY = b"retry: 2000\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-store",
    "x-accel-buffering": "no",  # nginx would hold events back until its buffer is full
}


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
    """The body of a response, piece by piece, for what `app.events` takes; its errors come before the first piece.

    It ends if its reader is too slow. One that comes back with the last id it has seen misses nothing: of given jobs
    the snapshot tells, otherwise the events since then.
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
                await asyncio.sleep(0)  # a socket that takes everything at once must not keep others from their turn


def _pieces(
    items: Sequence[Item], stream: EventStream, bookmark: Bookmark | None, encoded: "Encoded"
) -> Iterator[bytes]:
    """Their frames, without what the reader had before; each has its id, for the reader may be cut anywhere."""
    piece = bytearray()
    for item in items:
        if isinstance(item, Event) and bookmark is not None and stream.since is not None:
            if bookmark.has(item):
                continue
            bookmark.move(stream.since, item)
            piece += f"id: {bookmark}\n".encode()
        piece += encoded.frame(item)
        if len(piece) > PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


class Encoded:
    """Frames as they are sent, each made once however many streams it goes to; the last few megabytes of them."""

    def __init__(
        self,
        shown: Callable[[Item], dict[str, Any]] = plain,
        limit: int = 4 * 1024 * 1024,
        largest: int = 16 * 1024,
    ) -> None:
        self._shown = shown
        self._limit = limit
        self._largest = largest
        self._size = 0
        self._frames: OrderedDict[int, tuple[Item, bytes]] = OrderedDict()  # the item keeps its id

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
    return f"event: {event}\ndata: {msgspec.json.encode(data).decode()}\n\n".encode()
