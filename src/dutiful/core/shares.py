"""Fair shares: which tenants' jobs a lane starts next, so that none waits for another's backlog.

The next job is of the tenant that holds the fewest for its weight; of those that hold as many, of the one that was
served the least. So each tenant with enough jobs has slots in proportion to its weight, and one that comes new is next.
"""

import heapq
from collections import Counter
from collections.abc import Mapping
from itertools import islice

Tenant = str | None  # None: jobs without a tenant count as those of one
HEAVIEST = 1_000


class Shares:
    """Whose jobs a lane holds, claimed or running, and how much each tenant was served."""

    def __init__(self) -> None:
        self.held: Counter[Tenant] = Counter()
        self._served: dict[Tenant, float] = {}  # jobs by weight; of those that are ahead of the clock
        self._clock = 0.0  # what a tenant counts as served at least: it saves up nothing while it has no jobs

    def choose(self, waiting: Mapping[Tenant, int], room: int, reserved: int) -> dict[Tenant, int]:
        """How many jobs to claim of each waiting tenant, by its weight: `room`, and then `reserved` for new ones.

        A tenant is new if the lane holds no job of it. Tenants come in the order of `waiting`, if nothing else differs.
        """
        left = room + reserved
        held, served = Counter(self.held), dict(self._served)

        def place(tenant: Tenant) -> tuple[float, float]:
            return held[tenant] / waiting[tenant], max(served.get(tenant, 0.0), self._clock)

        queue = [(*place(one), n, one) for n, one in self._candidates(waiting, left)]
        heapq.heapify(queue)
        chosen: Counter[Tenant] = Counter()
        while queue and left > 0:
            _, start, n, tenant = heapq.heappop(queue)
            if left <= reserved and held[tenant]:
                continue
            chosen[tenant] += 1
            held[tenant] += 1
            served[tenant] = start + 1 / waiting[tenant]
            left -= 1
            heapq.heappush(queue, (*place(tenant), n, tenant))
        return dict(chosen)

    def took(self, tenant: Tenant, jobs: int, weight: int) -> None:
        """Counts claimed jobs."""
        if jobs:
            start = max(self._served.get(tenant, 0.0), self._clock)
            self.held[tenant] += jobs
            self._served[tenant] = start + jobs / weight
            self._advance(start)

    def gave_back(self, tenant: Tenant) -> None:
        """Counts a job that has ended, or was released."""
        self.held[tenant] -= 1
        if self.held[tenant] <= 0:
            del self.held[tenant]

    @property
    def total(self) -> int:
        """All jobs that the lane holds."""
        return self.held.total()

    def _candidates(self, waiting: Mapping[Tenant, int], most: int) -> list[tuple[int, Tenant]]:
        """Those that may be chosen: if `most` hold nothing and were not served yet, no other comes before them."""
        known = self.held.keys() | self._served.keys()
        fresh = list(islice(((n, one) for n, one in enumerate(waiting) if one not in known), most))
        return fresh if len(fresh) >= most else [*enumerate(waiting)]

    def _advance(self, start: float) -> None:
        if start > self._clock:
            self._clock = start
            self._served = {one: served for one, served in self._served.items() if served > start}
