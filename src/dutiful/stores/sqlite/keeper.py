"""Renews leases from a thread of its own, ahead of all other work that waits for the writer."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from dutiful.core.job import Token
from dutiful.stores.sqlite import work
from dutiful.stores.sqlite.reader import Reader
from dutiful.stores.sqlite.writer import Writer
from dutiful.working import Renewal


class SqliteKeeper:
    """Its calls block their thread until they are committed; an event loop that hangs does not matter to them."""

    def __init__(self, writer: Writer, reader: Reader, clock: Callable[[datetime | None], int]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    def renew(self, tokens: Sequence[Token], lease: timedelta, *, now: datetime | None = None) -> Renewal:
        # The clock is read by the writer: however long the renewal waited, it is for a whole lease.
        return self._writer.call(lambda db: work.renew(db, tokens, lease, self._clock(now)), urgent=True)

    def check(self, tokens: Sequence[Token]) -> Renewal:
        return self._reader.call(lambda db: work.check(db, tokens))

    def release(self, tokens: Sequence[Token]) -> None:
        self._writer.call(lambda db: work.release(db, tokens, self._clock(None)), urgent=True)

    def close(self) -> None:
        """Nothing to let go of: the connection is the writer's."""
