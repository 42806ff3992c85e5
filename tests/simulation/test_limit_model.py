"""Limits of both stores against their promise: in whatever order things happen, none is exceeded, none is stuck.

They are declared anew and changed by operators meanwhile: then no more start than are allowed, and what runs is left.
"""

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from simulated import Run, each_length, simulate_postgres, simulate_sqlite

from databases import CleanDatabase
from dutiful.core.job import Claim
from dutiful.core.limits import KindLimit, Limit
from dutiful.core.outcome import Cancelled, Failed, Outcome, Released
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import ClaimRequest, Completion, QueueLevel, Refusal, RefusalReason
from dutiful.store.control import PauseScope
from dutiful.store.queries import JobFilter
from suite.builders import ADA, LEASE, OOPS, T0, change, pause, rescue
from suite.limits import keyed

LEVEL = QueueLevel("default", 100)
KINDS = ("call", "post")  # they share both limits
KEYS = ("acme", "zeta")
ACTIONS = (
    *("enqueue", "admit", "claim", "complete") * 4,
    *("pass_time", "promote", "admit everywhere", "fail", "release", "rescue", "cancel", "pause", "resume", "sweep"),
    *("choose", "declare") * 2,
)
PER = timedelta(seconds=20)


class LimitMachine(RuleBasedStateMachine):
    def __init__(self, store: Store, run: Run) -> None:
        super().__init__()
        self.store, self.run = store, run
        self.now = T0
        self.claims: list[Claim] = []
        self.key_of: dict[UUID, str] = {}
        self.starts: list[tuple[datetime, str]] = []
        self.started: dict[int, tuple[datetime, str]] = {}  # by claim
        self.paused: set[str] = set()
        self.most: dict[str, int] = {}  # of limits that were chosen
        self.taken: dict[str, Counter[str]] = {}  # of declared limits on what runs at once, by key: as last seen

    @initialize(
        at_once=st.integers(1, 3),
        other=st.integers(1, 3),
        starts=st.integers(1, 4),
        fixed=st.booleans(),
        burst=st.integers(0, 3),
    )
    def begin(self, at_once: int, other: int, starts: int, fixed: bool, burst: int) -> None:
        self.at_once = {name: Limit(name, most) for name, most in (("at once", at_once), ("other", other))}
        self.rate = Limit("starts", starts, PER, burst if 0 < burst < starts else None, fixed)
        self._declare(["at once"])

    def _declare(self, names: list[str]) -> None:
        limits = [KindLimit(self.rate), *(KindLimit(self.at_once[name]) for name in names)]
        self.run(self.store.limits.put(dict.fromkeys(KINDS, limits), now=self.now))
        running = self._keys(State.RUNNING)
        self.taken = {name: self.taken.get(name, running) for name in names}
        self.most = {name: most for name, most in self.most.items() if name in names}

    def teardown(self) -> None:
        if hasattr(self, "rate"):
            self._all_run_in_the_end()
        assert self.run(self.store.queries.check_places()) == []

    @rule(action=st.sampled_from(ACTIONS), pick=st.integers(0, 1000))
    def step(self, action: str, pick: int) -> None:
        self.now += timedelta(milliseconds=1)
        kind, key = KINDS[pick % 2], KEYS[pick // 2 % 2]
        match action:
            case "enqueue":
                self._enqueue(kind, key, delay=timedelta(seconds=5) if pick % 5 == 0 else None)
            case "admit" | "admit everywhere":
                self._admit(everywhere=action == "admit everywhere")
            case "claim":
                self._claim(1 + pick % 3)
            case "pass_time":
                self.now += timedelta(seconds=pick % 12)
            case "promote":
                self.run(self.store.promotion.promote(10, now=self.now))
            case "sweep":
                self.run(self.store.promotion.sweep(10, now=self.now))
            case "rescue":
                self.now += LEASE
                self.run(rescue(self.store, now=self.now))
                self.claims = []
            case "pause":
                self.run(pause(self.store, PauseScope.KIND, kind, now=self.now))
                self.paused.add(kind)
            case "resume":
                self.run(self.store.control.resume(PauseScope.KIND, kind))
                self.paused.discard(kind)
            case "cancel" if self.key_of:
                self.run(self.store.control.cancel([*self.key_of][pick % len(self.key_of)], "no", now=self.now))
            case "declare":
                self._declare([["at once"], ["other"], ["at once", "other"], []][pick // 2 % 4])
            case "choose" if self.taken:
                name = [*self.taken][pick % len(self.taken)]
                self.most[name] = pick // 2 % 5
                assert self.run(self.store.limits.choose(name, self.most[name]))
            case "complete" | "fail" | "release" if self.claims:
                self._end(self.claims.pop(pick % len(self.claims)), action, began=pick % 3 > 0)

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        if not hasattr(self, "rate"):
            return
        taken = self._keys(State.READY, State.RUNNING)
        for name, before in self.taken.items():
            at_once = self.most.get(name, self.at_once[name].most)
            assert all(count <= max(at_once, before[key]) for key, count in taken.items()), (name, taken, before)
        self.taken = dict.fromkeys(self.taken, taken)
        for window, most in ((PER, self.rate.most), (self.rate.burst_window, self.rate.burst)):
            if window is not None and most is not None:
                self._check_starts(window, most, fixed=self.rate.fixed and window == PER)

    def _keys(self, *states: State) -> Counter[str]:
        jobs = self.run(self.store.queries.jobs(JobFilter(limit=10_000))).jobs
        return Counter(self.key_of[job.id] for job in jobs if job.state in states)

    def _check_starts(self, window: timedelta, most: int, *, fixed: bool) -> None:
        for key in KEYS:
            starts = [at for at, of in self.starts if of == key]
            if fixed:
                assert max(Counter(self.rate.over_at(at) for at in starts).values(), default=0) <= most
            else:
                for first, later in zip(starts, starts[most:], strict=False):
                    assert later - first >= window, (key, starts)

    def _enqueue(self, kind: str, key: str, delay: timedelta | None = None) -> None:
        job = keyed(key, limit="at once", kind=kind, delay=delay)
        options = f'{{"limits": {{"at once": "{key}", "other": "{key}", "starts": "{key}"}}}}'
        job = type(job)(**{**{f: getattr(job, f) for f in job.__struct_fields__}, "options": options})
        self.key_of[job.id] = key
        self.run(self.store.jobs.insert([job], now=self.now))

    def _admit(self, *, everywhere: bool = False) -> None:
        self.run(self.store.limits.admit(10, everywhere=everywhere, now=self.now))

    def _claim(self, count: int) -> None:
        kinds = [kind for kind in KINDS if kind not in self.paused]
        ask = ClaimRequest(ADA, "general", [LEVEL], kinds, limit=count, lease=LEASE, suspects=1)
        for claim in self.run(self.store.claims.claim(ask, now=self.now)):
            self.claims.append(claim)
            self.started[claim.claim_id] = (self.now, self.key_of[claim.job_id])
            self.starts.append(self.started[claim.claim_id])

    def _end(self, claim: Claim, action: str, *, began: bool = True) -> None:
        """Ends a claim, which may be lost by now, or of which a cancel was requested: then it ends as cancelled."""
        if action == "complete":
            done = [Completion(claim.job_id, claim.claim_id, None)]
            refused = self.run(self.store.claims.complete(done, now=self.now))
        else:
            outcome = Released(began) if action == "release" else Failed(OOPS)
            refused = self._settle(claim, outcome)
            if action == "release" and not began and not refused:
                self.starts.remove(self.started[claim.claim_id])
        if any(one.reason is RefusalReason.CANCEL_REQUESTED for one in refused):
            assert self._settle(claim, Cancelled("no")) == []

    def _settle(self, claim: Claim, outcome: Outcome) -> list[Refusal]:
        refused: list[Refusal] = self.run(self.store.claims.settle([change(claim, outcome)], now=self.now))
        return refused

    def _all_run_in_the_end(self) -> None:
        for kind in KINDS:
            self.run(self.store.control.resume(PauseScope.KIND, kind))
        self.paused = set()
        for name in self.taken:
            self.run(self.store.limits.choose(name, None))
        self.most = {}
        for _ in range(10 * len(self.key_of) + 10):
            self.now += timedelta(seconds=7)
            self.run(rescue(self.store, now=self.now))
            self.run(self.store.promotion.promote(100, now=self.now))
            self.run(self.store.promotion.sweep(100, now=self.now))
            self._admit(everywhere=True)
            self._claim(100)
            self.no_limit_is_exceeded()
            while self.claims:
                self._end(self.claims.pop(), "complete")
            jobs = self.run(self.store.queries.jobs(JobFilter(limit=10_000))).jobs
            waiting = [job for job in jobs if not job.state.final]
            if not waiting:
                return
        raise AssertionError(f"some wait without end: {waiting}")


@each_length(15, steps=100)
def test_limits_of_sqlite_are_never_exceeded(tmp_path: Path, sqlite_template: Path, length: settings) -> None:
    simulate_sqlite(LimitMachine, tmp_path, sqlite_template, length)


@each_length(15, steps=100)
def test_limits_of_postgres_are_never_exceeded(clean18: CleanDatabase, length: settings) -> None:
    simulate_postgres(LimitMachine, clean18, settings(length, max_examples=length.max_examples // 3))
