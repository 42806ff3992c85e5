"""Server-sent events: how jobs fare, as a browser's EventSource reads it."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import msgspec

from dutiful.app import Dutiful, JobRefs
from dutiful.core.errors import StreamOverflow
from dutiful.core.event import Event
from dutiful.watcher.plain import plain
from dutiful.web.bookmark import Bookmark

PING = 15.0
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
                    item = await anext(stream)
            except TimeoutError:
                next_ping = clock() + ping
                yield _frame("ping", {"at": datetime.now(UTC)})
                continue
            except (StopAsyncIteration, StreamOverflow):
                return
            if not isinstance(item, Event) or stream.since is None:
                yield _frame(item.type, plain(item))
            elif bookmark is None or not bookmark.has(item):
                bookmark = bookmark or Bookmark(stream.since)
                bookmark.move(stream.since, item)
                yield _frame(item.type, plain(item), str(bookmark))


def _frame(event: str, data: Any, id_: str | None = None) -> bytes:
    lines = [*([f"id: {id_}"] if id_ else []), f"event: {event}", f"data: {msgspec.json.encode(data).decode()}"]
    return "\n".join([*lines, "", ""]).encode()
