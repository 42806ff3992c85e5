"""What a worker remembers of the lines: which there are, and how far each has been claimed."""

import time
from collections.abc import Iterable, Sequence

from dutiful.core.job import Claim
from dutiful.settings import ANY
from dutiful.working import Line

# A row may commit after one with a higher seq was claimed; this many are looked at again with every claim.
MARGIN = 1_000
FORGET_AFTER = 60.0


class Lines:
    """Floors spare a claim from scanning dead index entries; peek finds what lies below them."""

    def __init__(self) -> None:
        self._floors: dict[tuple[str, int], int] = {}
        self._used: dict[tuple[str, int], float] = {}
        self._turn = 0

    def note(self, lines: Iterable[tuple[str, int]]) -> None:
        """There may be jobs in these."""
        now = time.monotonic()
        for line in lines:
            self._floors.setdefault(line, 0)
            self._used[line] = now

    def found(self, lines: Iterable[Line]) -> None:
        """A peek's answer: a first job below the floor committed late or was given back, so the floor comes down."""
        now = time.monotonic()
        for line in lines:
            key = (line.queue, line.priority)
            self._floors[key] = min(self._floors.get(key, line.seq - 1), line.seq - 1)
            self._used[key] = now

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Each line has been claimed up to the last of its jobs; the order of `claims` is that of the lines."""
        now = time.monotonic()
        for key, last in {(claim.queue, claim.priority): claim.seq for claim in claims}.items():
            self._floors[key] = max(self._floors.get(key, 0), last - MARGIN)
            self._used[key] = now

    def serve(self, queues: tuple[str, ...]) -> list[Line]:
        """The lines of these queues, best priority first; queues of one priority take turns to be first."""
        everything = ANY in queues
        mine = [key for key in self._floors if everything or key[0] in queues]
        self._turn += 1
        names = sorted({queue for queue, _ in mine})
        shift = self._turn % len(names) if names else 0
        rank = {name: (n - shift) % len(names) for n, name in enumerate(names)}
        mine.sort(key=lambda key: (key[1], rank[key[0]]))
        return [Line(queue, priority, self._floors[queue, priority]) for queue, priority in mine]

    def forget_idle(self) -> None:
        """A line that nothing came from for a while costs a look with every claim; a hint or a peek brings it back."""
        limit = time.monotonic() - FORGET_AFTER
        for line in [line for line, used in self._used.items() if used < limit]:
            del self._floors[line], self._used[line]
