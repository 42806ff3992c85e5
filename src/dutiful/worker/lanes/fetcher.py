"""Claims jobs for one lane, from where earlier claims ended, and tracks which pauses its claims have respected."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Protocol
from uuid import UUID

from dutiful.core.job import Claim, HeldClaim
from dutiful.declare.lane import ANY, LaneSettings
from dutiful.store.claims import ClaimRequest, QueueLevel
from dutiful.store.control import Pause
from dutiful.worker.batches import claim_more
from dutiful.worker.config import WorkerConfig
from dutiful.worker.lanes.inbox import InboxSource
from dutiful.worker.lanes.selection import select
from dutiful.worker.leases import Leases

FORGET_AFTER = 60.0
# A hint may name levels that do not exist, and each level costs an index look-up with every claim.
MOST_HINTED = 50
MOST_REMEMBERED = 200  # levels that are idle
MOST_ASKED = 1_000  # levels in one claim: who may enqueue may invent any number of queues
MOST_SEEN = 8  # peeks that are told apart by what they saw in a level
NEAR = 5_000_000  # microseconds below a floor: jobs of most transactions that commit late


class FetchCursors:
    """Keeps a floor for each queue at each priority, which spares claims from scanning dead index entries.

    The store searches what became due lately in any case; older jobs below a floor are found by a peek.
    """

    def __init__(self) -> None:
        self._floors: dict[tuple[str, int], int] = {}
        self._after: dict[tuple[str, int], UUID] = {}  # the last job claimed, whose seq is the floor's next
        self._used: dict[tuple[str, int], float] = {}
        # What peeks saw, the oldest first: when, and the seq. Only seqs below those that were seen later.
        self._seen: dict[tuple[str, int], list[tuple[float, int]]] = {}
        self._hinted: dict[tuple[str, int], float] = {}  # levels in which no job was seen yet, and when they were named
        self._idle: dict[tuple[str, int], int] = {}  # floors of levels that were forgotten, the latest last
        self._turn = 0
        self._ranked: dict[tuple[str, ...], list[tuple[int, list[str]]]] = {}  # by queues, while no level comes or goes

    def add_hinted(self, levels: Iterable[tuple[str, int]]) -> bool:
        """Notes queue levels that may have got jobs; False if they are too many to look at without a peek."""
        now = time.monotonic()
        for level in levels:
            if level not in self._floors:
                if len(self._hinted) >= MOST_HINTED:
                    return False
                self._put(level, 0)
                self._hinted[level] = now
            self._used[level] = now
        return True

    def add(self, levels: Iterable[tuple[str, int]]) -> None:
        """Notes queue levels that have jobs of the lane."""
        now = time.monotonic()
        for level in levels:
            self._add(level)
            self._used[level] = now

    def lower(self, levels: Iterable[QueueLevel], asked_at: float) -> None:
        """Lowers floors to what a peek has found: jobs below them committed late or were released.

        Drops levels that only a hint has named, before the peek began, and in which the peek found no job.
        """
        now = time.monotonic()
        for level in levels:
            key, below = (level.queue, level.priority), level.seq - 1
            # Also at the floor itself, because the job may be one that committed late, before the last one claimed.
            if below <= self._floors.get(key, below):
                self._put(key, below)
            self._see(key, now, level.seq)
            self._used[key] = now
            self._hinted.pop(key, None)
        for key in [key for key, named_at in self._hinted.items() if named_at < asked_at]:
            self._forget(key)

    def advance(self, claims: Sequence[Claim], asked_at: float) -> None:
        """Raises floors to the last job claimed at each level; `claims` are in the order of their levels.

        To just below its seq, because others may have become due at the same moment; of them, those with greater ids
        are left. Not for suspects, which are claimed wherever they are; nor to or beyond a job that a peek has seen
        since the claim began, because the claim may not have seen it.
        """
        now = time.monotonic()
        for key, last in {(one.queue, one.priority): one for one in claims if not one.crashes}.items():
            floor, after = last.seq - 1, UUID(int=0)
            if (seen := self._least_seen(key, asked_at)) is None or seen > last.seq:
                after = last.job_id
            else:
                floor = seen - 1
            before = self._floors.get(key, 0), self._after.get(key, UUID(int=0))
            if (floor, after) > before:
                self._put(key, floor, after if after.int else None)
        for key in {(one.queue, one.priority) for one in claims}:
            self._add(key)
            self._used[key] = now
            self._hinted.pop(key, None)

    def serves(self, queues: tuple[str, ...]) -> bool:
        """Whether there is a level of these queues."""
        return bool(self._floors) and (ANY in queues or any(queue in queues for queue, _ in self._floors))

    def levels(self, queues: tuple[str, ...]) -> list[QueueLevel]:
        return list(self.in_order(queues))

    def in_order(self, queues: tuple[str, ...]) -> Iterator[QueueLevel]:
        """The levels of these queues, best priority first; queues of one priority take turns to be first."""
        self._turn += 1
        for priority, names in self._ranks(queues):
            # Of very many, each claim begins with others, because those of the last one may be empty by now.
            step = 1 if len(names) <= MOST_ASKED else MOST_ASKED
            first = self._turn * step % len(names)
            for name in chain(islice(names, first, None), islice(names, first)):
                floor = self._floors.get((name, priority))
                if floor is not None:  # it may have been forgotten since the last one was asked for
                    yield QueueLevel(name, priority, floor, self._after.get((name, priority)))

    def _ranks(self, queues: tuple[str, ...]) -> list[tuple[int, list[str]]]:
        """The priorities, each with its queues; sorted once, because there may be very many."""
        if (found := self._ranked.get(queues)) is None:
            names: dict[int, list[str]] = {}
            for queue, priority in sorted(self._floors):
                if ANY in queues or queue in queues:
                    names.setdefault(priority, []).append(queue)
            found = self._ranked[queues] = sorted(names.items())
        return found

    def drop(self, levels: Iterable[QueueLevel], asked_at: float) -> None:
        """Forgets levels in which a claim found no job, unless a hint or a peek has named them since it began."""
        for level in levels:
            key = (level.queue, level.priority)
            if self._used.get(key, asked_at) < asked_at:
                self._forget(key)

    def near(self) -> list[QueueLevel]:
        """Where a new job most likely is: in a level that had jobs before, at its floor or a little below."""
        return [QueueLevel(*key, max(floor - NEAR, 0)) for key, floor in (self._idle | self._floors).items()]

    def forget_idle(self) -> None:
        """Drops idle levels, because each costs a look with every claim; a hint or a peek brings them back."""
        limit = time.monotonic() - FORGET_AFTER
        for key in [key for key, used in self._used.items() if used < limit]:
            self._idle.pop(key, None)
            if key not in self._hinted:
                self._idle[key] = self._floors[key]
            self._forget(key)
        for key in list(self._idle)[:-MOST_REMEMBERED]:
            del self._idle[key]

    def _see(self, key: tuple[str, int], when: float, seq: int) -> None:
        seen = [one for one in self._seen.get(key, ()) if one[1] < seq]
        if len(seen) == MOST_SEEN:  # the two oldest count as one
            seen[:2] = [(seen[1][0], seen[0][1])]
        self._seen[key] = [*seen, (when, seq)]

    def _least_seen(self, key: tuple[str, int], since: float) -> int | None:
        return next((seq for when, seq in self._seen.get(key, ()) if when >= since), None)

    def _add(self, key: tuple[str, int]) -> None:
        if key not in self._floors:
            self._put(key, 0)

    def _put(self, key: tuple[str, int], floor: int, after: UUID | None = None) -> None:
        if key not in self._floors:
            self._ranked.clear()
        self._floors[key] = floor
        if after is None:
            self._after.pop(key, None)
        else:
            self._after[key] = after

    def _forget(self, key: tuple[str, int]) -> None:
        self._ranked.clear()
        del self._floors[key], self._used[key]
        self._after.pop(key, None)
        self._seen.pop(key, None)
        self._hinted.pop(key, None)


class Suspects:
    """Admits one suspect at a time: a job that ran when a worker died, and may be the cause.

    If two ran when the next worker dies, a crash would be counted for both.
    """

    def __init__(self) -> None:
        self._reserved = False  # one is being claimed, or is here
        self._job_id: UUID | None = None
        self._denied: set[Callable[[], None]] = set()

    def reserve(self, wake: Callable[[], None]) -> bool:
        """Whether a lane may claim a suspect now; if not, `wake` is called once it may."""
        if self._reserved:
            self._denied.add(wake)
            return False
        self._reserved = True
        return True

    def assign(self, claims: Sequence[Claim]) -> None:
        """Keeps the reservation for the suspect among the claims, or ends it if there is none."""
        self._job_id = next((claim.job_id for claim in claims if claim.crashes), None)
        if self._job_id is None:
            self._end()

    def release(self, claim: Claim) -> None:
        if claim.job_id == self._job_id:
            self._end()

    def _end(self) -> None:
        self._reserved, self._job_id = False, None
        denied, self._denied = self._denied, set()
        for wake in denied:
            wake()


class Source(Protocol):
    """Where a lane claims its jobs."""

    @property
    def empty(self) -> bool:
        """Whether it is known to have none."""

    @property
    def more(self) -> bool:
        """Whether jobs are known that the last claim left, and that may be claimed when one of the lane's has ended."""

    async def claim(self, want: int, suspects: int) -> list[Claim]: ...


class LevelSource:
    """Claims what is next in the queues of a lane."""

    more = False  # a claim leaves none that it may claim

    def __init__(self, config: WorkerConfig, lane: LaneSettings, cursors: FetchCursors) -> None:
        self._config = config
        selection = select(config, lane)
        self._kinds, self._tenants = list(selection.kinds), selection.tenants
        self._lane = lane
        self._cursors = cursors

    @property
    def empty(self) -> bool:
        return not self._cursors.serves(self._lane.queues)

    async def claim(self, want: int, suspects: int) -> list[Claim]:
        config, levels = self._config, self._cursors.in_order(self._lane.queues)
        lease, kinds, tenants = config.settings.lease, self._kinds, self._tenants
        claims: list[Claim] = []
        while not claims and (asked := list(islice(levels, MOST_ASKED))):
            asked_at = time.monotonic()
            request = ClaimRequest(config.worker_id, self._lane.name, asked, kinds, want, lease, suspects, tenants)
            claims = await config.store.claims.claim(request)
            if claims:
                self._cursors.advance(claims, asked_at)
            elif len(asked) == MOST_ASKED:
                self._cursors.drop(asked, asked_at)  # at once, because each part costs a round trip with every claim
        return claims


class Fetcher:
    def __init__(
        self,
        config: WorkerConfig,
        lane: LaneSettings,
        cursors: FetchCursors,
        leases: Leases,
        suspects: Suspects,
        wake: Callable[[], None],
        source: Source | None = None,
    ) -> None:
        """`wake` is called when a suspect may be claimed that could not be before, or a broker has delivered a job.

        `source`: where a fair lane claims, in place of its queue levels.
        """
        self._store = config.store
        self._worker_id = config.worker_id
        self._claim_more = partial(
            claim_more, config.store, config.worker_id, lane.name, config.settings.lease, select(config, lane).tenants
        )
        self._leases = leases
        self._suspects = suspects
        self._wake = wake
        self._fetching = False
        self._fetches = 0  # including the one under way
        self._noticed: dict[str, int] = {}  # by a pause's mark: the fetches that may have begun before it was known
        self._source: Source
        if config.inbox is None:
            self._source = source or LevelSource(config, lane, cursors)
        else:
            self._source = InboxSource(config, config.inbox, lane)
            config.inbox.on_arrival.append(wake)

    @property
    def more(self) -> bool:
        return self._source.more

    async def fetch(self, want: int, suspect: bool) -> list[Claim]:
        """Claims up to `want` jobs, and besides, if asked to, a `suspect`, which is to be run before them."""
        if self._source.empty:
            return []
        suspect = suspect and self._suspects.reserve(self._wake)
        claims: list[Claim] = []
        try:
            self._fetching = True
            self._fetches += 1
            with self._leases.claiming():
                claims = await self._source.claim(want, int(suspect))
                self._leases.add(claims)
        finally:
            self._fetching = False
            if suspect:
                self._suspects.assign(claims)
        return claims

    async def fetch_for(self, first: Claim, want: int, *, across_tenants: bool) -> list[Claim]:
        """Claims up to `want` jobs more for the batch of this one."""
        self._fetching = True
        self._fetches += 1
        try:
            with self._leases.claiming():
                claims = await self._claim_more(first, want, across_tenants=across_tenants)
                self._leases.add(claims)
                return claims
        finally:
            self._fetching = False

    async def unknown_claims(self) -> list[HeldClaim]:
        """Claims that the store says this worker holds, and whose answer never arrived."""
        held = await self._store.claims.held_by(self._worker_id)
        await self._leases.wait_for_claims()  # those that another lane is fetching just now
        return [claim for claim in held if self._leases.claim(claim.claim_id) is None]

    def pauses_seen(self, pauses: Sequence[Pause]) -> tuple[str, ...]:
        """Notes what is paused; returns the marks of those that no fetch still under way can have missed."""
        self._noticed = {pause.mark: self._noticed.get(pause.mark, self._fetches) for pause in pauses}
        return tuple(mark for mark, fetches in self._noticed.items() if fetches < self._fetches or not self._fetching)
