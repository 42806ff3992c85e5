"""The contract of a delivery: word that there may be something to look at; never the truth.

A hint may be lost, repeated or late: workers also poll, so a lost one costs at most one poll.
"""

from collections.abc import AsyncIterator
from typing import Protocol

Lines = frozenset[tuple[str, int]]
"""The (queue, priority) that may have got jobs; empty means: look everywhere."""

EVERYWHERE: Lines = frozenset()


class Delivery(Protocol):
    def rides(self) -> bool:
        """Whether the next commit is to carry its hint itself: one round trip less, when none was sent lately."""
        ...

    def hint(self, lines: Lines, *, sent: bool = False) -> None:
        """Pass the word on, soon; called after the commit, never blocks, never raises.

        `sent`: the commit carried it, so only this process is left to tell.
        """

    def listen(self) -> AsyncIterator[Lines]:
        """What others say, until the iterator is closed; says `frozenset()` after a gap such as a reconnect."""
        ...

    def news(self) -> None:
        """Something happened to jobs: pass it on to watchers, soon; free while nobody watches. Never raises."""

    def watch(self) -> AsyncIterator[None]:
        """Yields when something may have happened to jobs, here or elsewhere, until the iterator is closed."""
        ...

    def watched(self, by_others: bool) -> None:
        """What the heartbeat found out: whether watchers of other processes are to be told."""

    @property
    def healthy(self) -> bool:
        """Whether hints can be expected now; if not, workers poll more often."""
        ...

    async def close(self) -> None: ...
