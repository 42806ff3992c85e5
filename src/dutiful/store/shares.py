"""The contract of fair shares: which tenants have jobs in which queue levels, and claims of so many of each.

Which tenant is next is decided by the lane (core/shares.py), not by the store, which pays nothing for lanes that are
not fair. A weight says how much more than others a tenant gets; without one it is 1, so that tenants need no set-up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import Claim
from dutiful.core.shares import Tenant
from dutiful.store.claims import QueueLevel

# Jobs without a tenant have no index of their own: a look searches so many of a queue level, and the next one goes on
# there, because jobs that no worker claims may stand before them.
WINDOW = 200
STEPS = 1_000  # queue levels of tenants that one look visits
EACH = 100  # of these, of one tenant: others need not wait until it has seen all queues that one may have invented

Place = tuple[str, str, int]  # tenant, queue, priority
Position = tuple[int, UUID]  # in a queue level: seq and job; many jobs may have the same seq
Walk = Mapping[tuple[str, int], Position]  # by queue and priority: where the search for jobs without a tenant is
FIRST, LAST = UUID(int=0), UUID(int=2**128 - 1)


class TenantLevel(msgspec.Struct, frozen=True):
    """A tenant's jobs in one queue level; `seq` is that of the first; None: none that is asked for.

    Where there is no tenant, `job_id` is the first.
    """

    tenant: Tenant
    queue: str
    priority: int
    seq: int | None
    weight: int = 1
    job_id: UUID = FIRST


class LookRequest(msgspec.Struct, frozen=True):
    """What a lane wants to know: the tenants that have jobs of `kinds` in `queues`, from the place `after` on."""

    lane: str
    queues: Sequence[str]  # ("*",): any
    kinds: Sequence[str]
    levels: Sequence[QueueLevel]  # where jobs without a tenant are searched for
    tenants: Sequence[str] = ()  # none: any, and jobs without one
    after: Place | None = None
    steps: int = STEPS
    walk: Walk = {}  # that of the look before
    within: Mapping[str, tuple[str, int]] = {}  # by tenant: after which queue level it is looked at, if it has more
    each: int = EACH

    def start(self, level: QueueLevel) -> Position:
        """After which job those without a tenant are searched for."""
        floor = level.seq, LAST
        return max(self.walk.get((level.queue, level.priority), floor), floor)


class Look(msgspec.Struct, frozen=True):
    levels: list[TenantLevel]
    next: Place | None  # where the next look begins; None: all was seen
    suspects: bool  # whether there is a job that was lost with its worker
    walk: Walk = {}  # of levels that have more jobs to search, and in which none without a tenant was found yet

    def unfinished(self, each: int) -> dict[str, tuple[str, int]]:
        """By tenant: the last queue level that was seen, of those that may have more than these."""
        count = Counter(one.tenant for one in self.levels)
        return {
            one.tenant: (one.queue, one.priority) for one in self.levels if one.tenant and count[one.tenant] >= each
        }


class Take(msgspec.Struct, frozen=True):
    """Up to `count` jobs of a tenant in one queue level, from `seq` on; where there is no tenant, from `job_id` on."""

    tenant: Tenant
    queue: str
    priority: int
    seq: int
    count: int
    job_id: UUID = FIRST


class ShareRequest(msgspec.Struct, frozen=True):
    worker_id: UUID
    lane: str
    takes: Sequence[Take]
    kinds: Sequence[str]
    lease: timedelta


class ShareRecord(msgspec.Struct, frozen=True):
    """A tenant whose weight was set, or that runs jobs."""

    tenant: Tenant
    weight: int = 1
    running: int = 0


def records(weights: Mapping[str, int], running: Mapping[Tenant, int]) -> list[ShareRecord]:
    """By how much they run, and then by name."""
    found = [
        ShareRecord(tenant, weights.get(tenant or "", 1), running.get(tenant, 0)) for tenant in {*weights, *running}
    ]
    return sorted(found, key=lambda one: (-one.running, one.tenant or ""))


class ShareStore(Protocol):
    async def look(self, ask: LookRequest) -> Look:
        """Reads a bounded number of queue levels of tenants, in the order of tenants; no suspects are among them.

        Of a tenant, no more than `each`: those after the one that `within` names, or the first ones if there is none.
        """

    async def claim(self, ask: ShareRequest, *, now: datetime | None = None) -> list[Claim]:
        """Claims what is asked for, in its order; fewer of a tenant if it has no more there, or others hold them."""

    async def all(self) -> list[ShareRecord]: ...

    async def put(self, tenant: str, weight: int | None) -> None:
        """Sets the weight of a tenant; None: 1 again."""
