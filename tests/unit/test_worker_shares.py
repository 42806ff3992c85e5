"""How far a fair lane looks for tenants that have jobs."""

from types import SimpleNamespace
from typing import Any

from worker_parts import config_of, new_claim

from dutiful.core.job import Claim
from dutiful.declare.lane import LaneSettings
from dutiful.store.shares import Look, LookRequest, Place, ShareRequest, TenantLevel
from dutiful.worker.fetcher import FetchCursors
from dutiful.worker.shares import MOST_LOOKS, FairBuffer, FairSource


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


def source_of(shares: Any) -> FairSource:
    lane = LaneSettings("general", 2, fair=True)
    config = config_of(None, lanes=(lane,))
    config.store = SimpleNamespace(shares=shares)
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
