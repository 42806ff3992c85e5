"""Fair shares of both stores against their promise: whatever happens, no tenant waits for another's backlog."""

from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from simulated import Run, each_length, simulate_postgres, simulate_sqlite

from databases import CleanDatabase
from dutiful.core.job import Claim
from dutiful.core.outcome import Released
from dutiful.declare.lane import LaneSettings
from dutiful.settings import Settings
from dutiful.store import Store
from dutiful.store.claims import Completion
from dutiful.worker.lanes.fetcher import FetchCursors
from dutiful.worker.lanes.shares import FairBuffer, FairSource
from suite.builders import ADA, KIND, at, change, enqueue, new_job

TENANTS = ("acme", "zeta", "moon", None)
PRIORITIES = (50, 100)
ACTIONS = (*("enqueue", "fetch", "run", "end") * 4, "flood", "give back", "weigh")


class ShareMachine(RuleBasedStateMachine):
    def __init__(self, store: Store, run: Run) -> None:
        super().__init__()
        self.store, self.run = store, run
        self.waiting: defaultdict[str | None, list[tuple[int, int, UUID]]] = defaultdict(list)
        self.order: dict[UUID, tuple[str | None, tuple[int, int, UUID]]] = {}
        self.weights: Counter[str | None] = Counter()
        self.running: list[Claim] = []
        self.inserts = 0

    @initialize(slots=st.integers(1, 5), reserve=st.integers(0, 2))
    def declare(self, slots: int, reserve: int) -> None:
        lane = LaneSettings("general", slots, fair=True, reserve=min(reserve, slots - 1))
        config: Any = SimpleNamespace(
            store=self.store, worker_id=ADA, kinds={KIND: None}, inbox=None, settings=Settings(lanes=(lane,))
        )
        cursors = FetchCursors()
        cursors.add(("default", priority) for priority in PRIORITIES)
        self.slots, self.open = slots, slots - lane.reserved
        self.buffer = FairBuffer(slots, lane.reserved)
        self.source = FairSource(config, lane, cursors, self.buffer)

    def teardown(self) -> None:
        if hasattr(self, "source"):
            while self.order:
                before = len(self.order)
                self._fetch()
                self._start()
                while self.running:
                    self._end(0)
                assert len(self.order) < before, "some wait without end"
        assert self.run(self.store.queries.check_places()) == []

    @rule(action=st.sampled_from(ACTIONS), pick=st.integers(0, 1000))
    def step(self, action: str, pick: int) -> None:
        tenant = TENANTS[pick % len(TENANTS)]
        match action:
            case "enqueue" | "flood":
                self._enqueue(tenant, PRIORITIES[pick // 4 % 2], 20 if action == "flood" else 1 + pick // 8 % 3)
            case "fetch":
                self._fetch()
            case "run":
                self._start()
            case "weigh" if tenant is not None:
                self.weights[tenant] = 1 + pick // 4 % 3
                self.run(self.store.shares.put(tenant, self.weights[tenant]))
            case "end" if self.running:
                self._end(pick % len(self.running))
            case "give back" if self.running:
                claim = self.running.pop(pick % len(self.running))
                assert self.run(self.store.claims.settle([change(claim, Released())])) == []
                self.buffer.ended(claim)
                self.waiting[claim.tenant].append(self.order[claim.job_id][1])

    def _enqueue(self, tenant: str | None, priority: int, count: int) -> None:
        jobs = [new_job(tenant=tenant, priority=priority) for _ in range(count)]
        self.inserts += 1
        self.run(enqueue(self.store, *jobs, now=at(self.inserts)))
        for job in jobs:
            # All become due in the order in which they were made.
            place = (priority, int(job.id), job.id)
            self.order[job.id] = (tenant, place)
            self.waiting[tenant].append(place)

    def _fetch(self) -> None:
        """Claims as long as there is room, and checks that it was shared as promised."""
        before = Counter(self.buffer.shares.held)
        while True:
            self.source._look_at = 0.0  # what is known may be old, which this does not simulate
            claims = self.run(self.source.claim(self.slots - self.buffer.shares.total, 0))
            if not claims:
                break
            for tenant in {claim.tenant for claim in claims}:
                own = [claim.job_id for claim in claims if claim.tenant == tenant]
                self.waiting[tenant].sort()
                assert own == [job_id for _, _, job_id in self.waiting[tenant][: len(own)]], "by priority and age"
                del self.waiting[tenant][: len(own)]
            for claim in claims:
                self.buffer.append(claim)
        held, total = self.buffer.shares.held, self.buffer.shares.total
        left = [tenant for tenant, jobs in self.waiting.items() if jobs]
        assert total <= self.slots
        assert all(count <= max(self.open, 1) for count in held.values()), "one takes the reserve"
        if total < self.slots and left:
            assert total >= self.open and all(held[tenant] for tenant in left), "a slot is idle without reason"
        for tenant in held:
            if held[tenant] > before[tenant]:
                least = min((held[one] / self._weight(one) for one in left if one != tenant), default=1000)
                assert (held[tenant] - 1) / self._weight(tenant) <= least, (tenant, held, left)

    def _start(self) -> None:
        while self.buffer and len(self.running) < self.slots:
            self.running.append(self.buffer.popleft())
        tenants = Counter(claim.tenant for claim in self.running)
        assert all(count <= max(self.open, 1) for count in tenants.values())

    def _end(self, n: int) -> None:
        claim = self.running.pop(n)
        assert self.run(self.store.claims.complete([Completion(claim.job_id, claim.claim_id, None)])) == []
        self.buffer.ended(claim)
        del self.order[claim.job_id]

    def _weight(self, tenant: str | None) -> int:
        return self.weights[tenant] or 1


@each_length(15, steps=100)
def test_tenants_of_sqlite_share_fairly(tmp_path: Path, sqlite_template: Path, length: settings) -> None:
    simulate_sqlite(ShareMachine, tmp_path, sqlite_template, length)


@each_length(6, steps=100)
def test_tenants_of_postgres_share_fairly(clean18: CleanDatabase, length: settings) -> None:
    simulate_postgres(ShareMachine, clean18, length)
