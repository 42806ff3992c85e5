"""What every context of a worker reaches the outside through."""

from dataclasses import dataclass
from typing import Protocol

from dutiful.worker.breakers import Breakers
from dutiful.worker.locks import Locks
from dutiful.worker.track import Notes, Track
from dutiful.working import Work


class Reporting(Notes, Protocol):
    async def last_word(self, track: Track) -> None:
        """Store what the track said last; it says no more."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Locks and breakers are missing where handlers run inline."""

    work: Work
    reporter: Reporting
    locks: Locks | None
    breakers: Breakers | None
    result_limit: int
