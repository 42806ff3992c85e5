"""A fair lane: claims jobs of tenants in turn, and runs them so that slots are left for a tenant that comes new."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter

from dutiful.core.job import Claim
from dutiful.core.shares import Shares, Tenant
from dutiful.declare.lane import LaneSettings
from dutiful.store.claims import ClaimRequest, QueueLevel
from dutiful.store.shares import Look, LookRequest, Place, Position, ShareRequest, Take, Walk
from dutiful.worker.config import WorkerConfig
from dutiful.worker.lanes.fetcher import MOST_ASKED, FetchCursors
from dutiful.worker.lanes.selection import select

LOOK_SHARE = 1  # a look is repeated after this many times as long as it took
LONG, SHORTEST = 1.0, 1e-5  # seconds; a job is believed to take long until some have ended
MOST_LOOKS = 10  # in a row, while they find no jobs to claim
TRIES = 3  # claims in a row that may bring nothing, because others were faster


class FairBuffer:
    """The claims that no slot has taken up yet, by tenant; a tenant that runs the least for its jobs is next.

    The last `reserve` slots are only for tenants that run nothing here. A suspect goes before all.
    """

    def __init__(self, slots: int, reserve: int) -> None:
        self.shares = Shares()
        self.reserve = reserve
        self._open = slots - reserve
        self._claims: dict[Tenant, deque[Claim]] = {}
        self._suspects: deque[Claim] = deque()
        self._running: Counter[Tenant] = Counter()
        self.weights: dict[Tenant, int] = {}  # other than 1
        self._count = 0
        self.usual_run = LONG  # seconds

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        """Whether a slot that is free may take a claim."""
        if not self._count:
            return False
        return bool(self._suspects) or self._is_open or any(not self._running[one] for one in self._claims)

    def firsts(self) -> list[Claim]:
        """Suspects, and then the first claim of each tenant, in the order in which they came."""
        return [*self._suspects, *sorted((own[0] for own in self._claims.values()), key=attrgetter("claim_id"))]

    @property
    def _is_open(self) -> bool:
        return self._running.total() < self._open

    def append(self, claim: Claim) -> None:
        self._claims.setdefault(claim.tenant, deque()).append(claim)
        self._add(claim)

    def appendleft(self, claim: Claim) -> None:
        self._suspects.append(claim)
        self._add(claim)

    def popleft(self) -> Claim:
        """The next claim; if none may be taken by a slot, any of them, to be released."""
        self._count -= 1
        claim = self._suspects.popleft() if self._suspects else self._next()
        self._running[claim.tenant] += 1
        return claim

    def demand(self, idle: int, soon: float, most_ahead: int) -> tuple[int, int]:
        """How many jobs to claim if so many slots are idle, and with how few claims left it is time to claim again.

        No more is claimed ahead than will end `soon`: what is claimed has its turn already. The last `reserve` of what
        is wanted is only for tenants that run nothing here. It is wanted whenever a slot is idle, because what was
        claimed ahead, when jobs seemed shorter than they are, cannot take that slot.
        """
        slots = self._open + self.reserve
        ahead = min(most_ahead, int(slots * soon / self.usual_run))
        low = ahead // 2
        want = max(slots + ahead - self.shares.total, min(self.reserve, idle))
        return (want if idle > self.reserve or len(self) <= low else min(want, self.reserve)), low

    def take(self, joins: Callable[[Claim], bool]) -> None:
        """Removes the claims that join a batch, which its tenant's share counts as one job."""
        for tenant, own in list(self._claims.items()):
            kept = deque(claim for claim in own if not joins(claim))
            for _ in range(len(own) - len(kept)):
                self._count -= 1
                self.shares.gave_back(tenant)
            if kept:
                self._claims[tenant] = kept
            else:
                del self._claims[tenant]

    def ended(self, claim: Claim, run: float | None = None) -> None:
        """Its job has ended after so many seconds, or the claim was released."""
        if run is not None:
            self.usual_run = max(0.9 * self.usual_run + 0.1 * run, SHORTEST)
        self._running[claim.tenant] -= 1
        if self._running[claim.tenant] <= 0:
            del self._running[claim.tenant]
        self.shares.gave_back(claim.tenant)

    def weight(self, tenant: Tenant) -> int:
        return self.weights.get(tenant, 1)

    def _add(self, claim: Claim) -> None:
        self._count += 1
        self.shares.took(claim.tenant, 1, self.weight(claim.tenant))

    def _next(self) -> Claim:
        tenant = min(self._claims, key=lambda one: self._running[one] / self.weight(one))
        own = self._claims.pop(tenant)
        claim = own.popleft()
        if own:
            self._claims[tenant] = own  # behind those that run as little
        return claim


class FairSource:
    """Claims what is next in the queues of a lane, tenant by tenant: it looks who has jobs, and then it chooses."""

    def __init__(self, config: WorkerConfig, lane: LaneSettings, cursors: FetchCursors, buffer: FairBuffer) -> None:
        self._config = config
        selection = select(config, lane)
        self._kinds, self._tenants = list(selection.kinds), selection.tenants
        self._lane = lane
        self._cursors = cursors
        self._buffer = buffer
        self._levels: dict[Tenant, dict[tuple[int, str], Position]] = {}  # by priority and queue: the next job
        self._seen: set[Tenant] = set()  # since the looks began at the first tenant
        self._after: Place | None = None
        self._walk: Walk = {}
        self._within: dict[str, tuple[str, int]] = {}
        self._look_at = 0.0
        self._suspects = False

    @property
    def empty(self) -> bool:
        return not self._levels and not self._cursors.serves(self._lane.queues)

    @property
    def more(self) -> bool:
        """Whether jobs are known that were not claimed: another tenant's turn comes first."""
        return bool(self._levels)

    async def claim(self, want: int, suspects: int) -> list[Claim]:
        claims: list[Claim] = []
        for _ in range(TRIES):
            stale = bool(self._levels) and time.monotonic() < self._look_at
            if takes := self._choose(want) if stale else await self._look_and_choose(want):
                claims = await self._claim(takes)
            if claims or not (takes or stale):
                break
            if stale:  # a tenant may have come since
                await asyncio.sleep(max(self._look_at - time.monotonic(), 0))
        if suspects and self._suspects:
            claims += await self._claim_suspects(suspects)
        return claims

    async def _look_and_choose(self, want: int) -> list[Take]:
        """Looks on while no job is found and there is more to see, but not without end: others use the store, too."""
        for _ in range(MOST_LOOKS - 1):
            await self._look()
            if (takes := self._choose(want)) or not (self._after or self._walk):
                return takes
            await asyncio.sleep(max(self._look_at - time.monotonic(), 0))
        await self._look()
        return self._choose(want)

    async def _look(self) -> None:
        """Learns which tenants have jobs; of very many tenants, it looks at the next ones each time."""
        began = time.monotonic()
        config, lane = self._config, self._lane
        levels = self._some_levels()
        some = len(levels) == MOST_ASKED
        ask = LookRequest(
            lane.name,
            lane.queues,
            self._kinds,
            levels,
            self._tenants,
            self._after,
            walk=self._walk,
            within=dict(self._within),
        )
        look = await config.store.shares.look(ask)
        self._learn(look, some=some)
        self._note_within(look, ask.each)
        self._after, self._suspects = look.next, look.suspects
        self._walk = {**self._others(levels), **look.walk} if some else look.walk
        self._look_at = time.monotonic() + LOOK_SHARE * (time.monotonic() - began)

    def _some_levels(self) -> list[QueueLevel]:
        """As many as a claim asks for; of more, the next look begins with others."""
        return list(islice(self._cursors.in_order(self._lane.queues), MOST_ASKED))

    def _others(self, levels: Sequence[QueueLevel]) -> Walk:
        """Where the search is in levels that this look has not asked for."""
        asked = {(level.queue, level.priority) for level in levels}
        rest = [(key, place) for key, place in self._walk.items() if key not in asked]
        return dict(rest[-MOST_ASKED:])

    def _note_within(self, look: Look, each: int) -> None:
        for one in look.levels:
            self._within.pop(one.tenant or "", None)
        self._within |= look.unfinished(each)
        for tenant in list(self._within)[:-MOST_ASKED]:
            del self._within[tenant]

    def _learn(self, look: Look, *, some: bool) -> None:
        """`some`: not all levels were searched for jobs without a tenant."""
        known: dict[Tenant, dict[tuple[int, str], Position]] = {}
        for one in look.levels:
            levels = known.setdefault(one.tenant, {})
            if one.seq is not None:
                levels[one.priority, one.queue] = one.seq, one.job_id
                self._weigh(one.tenant, one.weight)
        for tenant, levels in known.items():
            # A tenant's levels may be in two looks.
            before = self._levels.get(tenant, {}) if tenant in self._seen else {}
            if len(before) > MOST_ASKED:
                before = {}
            if merged := before | levels:
                self._levels[tenant] = merged
            else:
                self._levels.pop(tenant, None)
        self._seen |= known.keys()
        if look.walk:  # those without a tenant are where they were found, until a claim brings none
            self._seen.add(None)
        if some and None in self._levels:
            self._seen.add(None)
        if look.next is None:  # who was not seen has no jobs
            for tenant in self._levels.keys() - self._seen:
                del self._levels[tenant]
            self._seen = set()

    def _weigh(self, tenant: Tenant, weight: int) -> None:
        if weight != 1:
            self._buffer.weights[tenant] = weight
        else:
            self._buffer.weights.pop(tenant, None)

    def _choose(self, want: int) -> list[Take]:
        """The best priority of each tenant that is next."""
        reserved = min(self._buffer.reserve, want)
        waiting = {tenant: self._buffer.weight(tenant) for tenant in self._levels}
        chosen = self._buffer.shares.choose(waiting, want - reserved, reserved)
        takes = []
        for tenant, count in chosen.items():
            (priority, queue), (seq, job_id) = min(self._levels[tenant].items())
            takes.append(Take(tenant, queue, priority, seq, count, job_id))
        return takes

    async def _claim(self, takes: Sequence[Take]) -> list[Claim]:
        config = self._config
        ask = ShareRequest(config.worker_id, self._lane.name, takes, self._kinds, config.settings.lease)
        claims = await config.store.shares.claim(ask)
        brought = Counter((claim.tenant, claim.queue, claim.priority) for claim in claims)
        last = {(claim.tenant, claim.queue, claim.priority): (claim.seq, claim.job_id) for claim in claims}
        for take in takes:
            place = take.tenant, take.queue, take.priority
            levels = self._levels[take.tenant]
            if brought[place] >= take.count:
                levels[take.priority, take.queue] = last[place]
                continue
            del levels[take.priority, take.queue]  # it had no more
            if not levels:
                del self._levels[take.tenant]
        self._cursors.add({(claim.queue, claim.priority) for claim in claims})
        return claims

    async def _claim_suspects(self, number: int) -> list[Claim]:
        config, lane = self._config, self._lane
        levels, tenants = self._some_levels(), self._tenants
        ask = ClaimRequest(config.worker_id, lane.name, levels, self._kinds, 0, config.settings.lease, number, tenants)
        return await config.store.claims.claim(ask)
