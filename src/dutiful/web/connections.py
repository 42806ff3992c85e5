"""Connections of `dutiful server`: how long a client may take to send a request, and how many connections there are.

Uvicorn limits neither: it waits for the head and the body of a request for ever, as long as it gets a byte now and
then, and for a client to read its answer.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from dutiful.concurrency.vanished import notice_vanished
from dutiful.web.limits import bucket_of

HEAD_TIME = 15.0  # for the first line and the headers, since the connection is free
BODY_TIME = 15.0  # for the rest; operations wait for less
MOST = 1_000
SPARE = 100  # files that are left for the database, logs and so on
_EARLY = 0.01  # a timer may be early by the resolution of the clock
VANISHED_AFTER = 60  # seconds in which a client acknowledges nothing


class Connection(H11Protocol):
    """Is closed if no whole request arrives in time, or nothing of the answer is read.

    While an answer is made, and read, it has all the time it needs.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.bucket = bucket_of(self.client[0]) if self.client else "unknown"
        self.free_since = self.loop.time()
        self._unread = 0  # bytes at the last check
        self._check_after(HEAD_TIME)
        notice_vanished(transport, VANISHED_AFTER)
        make_room(self.connections, most())

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.free_since = self.loop.time()
        super().on_response_complete()

    def resume_writing(self) -> None:
        self._unread = 0  # the client has read some
        super().resume_writing()

    @property
    def waits_for_client(self) -> bool:
        """Whether there is no request, or only a part of one."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def cut(self) -> None:
        """Closes the connection without waiting for what is not read yet."""
        self.transport.abort()

    def _check_after(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._check)

    def _check(self) -> None:
        before, self._unread = self._unread, self.transport.get_write_buffer_size()
        is_stuck = 0 < before <= self._unread
        if is_stuck or (self.waits_for_client and not self._unread and self._is_late()):
            self.cut()
        else:
            self._check_after(min(HEAD_TIME, BODY_TIME))

    def _is_late(self) -> bool:
        has_head = self.cycle is not None and not self.cycle.response_complete
        allowed = HEAD_TIME + (BODY_TIME if has_head else 0)
        return self.loop.time() - self.free_since >= allowed - _EARLY


def make_room(connections: Iterable[Any], most: int) -> None:
    """Closes waiting connections if there are more than `most`: the older half of those of one client.

    It is the client that has most of them, so that a flood of connections closes its own.
    """
    alive = [one for one in connections if not one.transport.is_closing()]
    if len(alive) <= most:
        return
    waiting: defaultdict[str, list[Connection]] = defaultdict(list)
    for one in alive:
        if one.waits_for_client:
            waiting[one.bucket].append(one)
    if waiting:  # otherwise all are being answered, and the new one waits, so it is there
        flood = max(waiting.values(), key=lambda ones: len(ones))
        flood.sort(key=lambda one: one.free_since)
        for one in flood[: (len(flood) + 1) // 2]:
            one.cut()


def most() -> int:
    """MOST, or as many as this process may have files."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if files == resource.RLIM_INFINITY else max(1, min(MOST, files - SPARE))
