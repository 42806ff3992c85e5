"""How far a fair lane looks for tenants that have jobs."""

from types import SimpleNamespace
from typing import Any

from worker_parts import config_of, new_claim

from dutiful.core.job import Claim
from dutiful.declare.lane import LaneSettings
from dutiful.store.claims import ClaimRequest
from dutiful.store.shares import EACH, FIRST, Look, LookRequest, Place, ShareRequest, TenantLevel
from dutiful.worker.lanes.fetcher import MOST_ASKED, FetchCursors
from dutiful.worker.lanes.shares import MOST_LOOKS, FairBuffer, FairSource


class PagedShares:
    """Pages of tenants with jobs that the lane does not serve, and one behind them that has a job for it."""

    def __init__(self, empty: int) -> None:
        self.empty = empty
        self.asked: list[Place | None] = []

    async def look(self, ask: LookRequest) -> Look:
        self.asked.append(ask.after)
        number = 0 if ask.after is None else int(ask.after[0]) + 1
        if number < self.empty:
            place = str(number), "default", 100
            return Look([TenantLevel(*place, None)], place, False)
        return Look([TenantLevel("zeta", "default", 100, 1)], None, False)

    async def claim(self, ask: ShareRequest) -> list[Claim]:
        return [new_claim(tenant=take.tenant) for take in ask.takes]


def source_of(shares: Any, claims: Any = None) -> FairSource:
    lane = LaneSettings("general", 2, fair=True)
    config = config_of(None, lanes=(lane,))
    config.store = SimpleNamespace(shares=shares, claims=claims)
    return FairSource(config, lane, FetchCursors(), FairBuffer(2, 1))


async def test_a_look_that_finds_no_jobs_is_followed_by_the_next_in_the_same_turn() -> None:
    shares = PagedShares(empty=2)

    (claim,) = await source_of(shares).claim(1, 0)

    assert claim.tenant == "zeta"
    assert shares.asked == [None, ("0", "default", 100), ("1", "default", 100)]


async def test_a_turn_has_so_many_looks_at_most_and_the_next_goes_on_there() -> None:
    shares = PagedShares(empty=MOST_LOOKS)
    source = source_of(shares)

    assert await source.claim(1, 0) == []
    assert len(shares.asked) == MOST_LOOKS
    (claim,) = await source.claim(1, 0)
    assert claim.tenant == "zeta" and len(shares.asked) == MOST_LOOKS + 1


def fill(buffer: FairBuffer, tenant: str, running: int, waiting: int) -> None:
    for _ in range(running + waiting):
        buffer.append(new_claim(tenant=tenant))
    for _ in range(running):
        buffer.popleft()


def test_what_was_claimed_ahead_of_short_jobs_does_not_take_the_slot_of_a_new_tenant() -> None:
    buffer = FairBuffer(slots=8, reserve=1)
    fill(buffer, "flood", running=7, waiting=1)  # the one that waits may not take the eighth slot
    buffer.usual_run = 1.0  # its jobs have turned out to be long: none would be claimed ahead now

    assert not buffer
    assert buffer.demand(idle=1, soon=0.01, most_ahead=500) == (1, 0)
    assert buffer.demand(idle=0, soon=0.01, most_ahead=500) == (0, 0), "without a slot, a new tenant waits as well"


def test_a_lane_claims_ahead_what_ends_within_two_round_trips() -> None:
    buffer = FairBuffer(slots=8, reserve=1)
    fill(buffer, "flood", running=7, waiting=0)
    buffer.usual_run = 0.02

    assert buffer.demand(idle=1, soon=0.01, most_ahead=500) == (8 + 4 - 7, 2)
    assert buffer.demand(idle=1, soon=0.01, most_ahead=2) == (8 + 2 - 7, 1)
    assert buffer.demand(idle=1, soon=0.01, most_ahead=0) == (1, 0), "after a crash they might have begun"


def test_with_work_in_hand_only_new_tenants_are_asked_for() -> None:
    buffer = FairBuffer(slots=8, reserve=1)
    fill(buffer, "flood", running=7, waiting=3)
    buffer.usual_run = 0.02

    assert buffer.demand(idle=1, soon=0.01, most_ahead=500) == (1, 2)
    assert buffer.demand(idle=2, soon=0.01, most_ahead=500) == (8 + 4 - 10, 2), "a slot is free for any of them"


class AskedShares:
    """Has a job without a tenant in one queue, and notes what it is asked for."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.looks: list[LookRequest] = []

    async def look(self, ask: LookRequest) -> Look:
        self.looks.append(ask)
        return Look([TenantLevel(None, one.queue, 100, 1) for one in ask.levels if one.queue == self.queue], None, True)

    async def claim(self, ask: Any) -> list[Claim]:
        return [new_claim(queue=take.queue) for take in ask.takes]


class AskedClaims:
    def __init__(self) -> None:
        self.asked: list[ClaimRequest] = []

    async def claim(self, ask: ClaimRequest) -> list[Claim]:
        self.asked.append(ask)
        return []


async def test_a_look_and_a_search_for_suspects_name_so_many_queue_levels_at_most() -> None:
    shares, claims = AskedShares("q3456"), AskedClaims()
    source = source_of(shares, claims)
    source._cursors.add((f"q{n:04}", 100) for n in range(5_000))

    found: list[Claim] = []
    for _ in range(5):
        found += await source.claim(1, 1)

    assert "q3456" in {claim.queue for claim in found}, "each look begins with others"
    assert {len(look.levels) for look in shares.looks} == {MOST_ASKED}
    assert {len(ask.levels) for ask in claims.asked} == {MOST_ASKED}


async def test_jobs_without_a_tenant_are_known_until_a_claim_brings_none_if_a_look_names_some_levels() -> None:
    shares = AskedShares("q0")
    source = source_of(shares)
    source._cursors.add((f"q{n}", 100) for n in range(3_000))
    for _ in range(3):
        await source._look()
    assert list(source._levels) == [None]


async def test_a_search_goes_on_in_levels_that_a_look_has_not_named() -> None:
    class Walking(AskedShares):
        async def look(self, ask: LookRequest) -> Look:
            self.looks.append(ask)
            return Look([], None, False, {(one.queue, one.priority): (7, FIRST) for one in ask.levels})

    shares = Walking("")
    source = source_of(shares)
    source._cursors.add((f"q{n}", 100) for n in range(1_500))
    for _ in range(4):
        await source._look()
    last = shares.looks[-1]
    assert all(last.start(level) == (7, FIRST) for level in last.levels)


async def test_a_tenant_with_very_many_queues_is_looked_at_from_where_the_last_look_ended() -> None:
    class Crowded(AskedShares):
        async def look(self, ask: LookRequest) -> Look:
            self.looks.append(ask)
            _, first = ask.within.get("acme", ("", 0))
            levels = [TenantLevel("acme", "default", first + n, None) for n in range(1, EACH + 1)]
            return Look([*levels, TenantLevel("zeta", "default", 100, None)], None, False)

    shares = Crowded("")
    source = source_of(shares)
    for _ in range(3):
        await source._look()
    expected = [{}, {"acme": ("default", EACH)}, {"acme": ("default", 2 * EACH)}]
    assert [dict(look.within) for look in shares.looks] == expected
