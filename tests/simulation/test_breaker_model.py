"""Breakers of both stores against one model: enter, exit, crash and open in any order."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from breaker_model import BreakerModel, Caller
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from simulated import Run, each_length, simulate_postgres, simulate_sqlite

from databases import CleanDatabase
from dutiful.core.breaker.state import BreakerPolicy, CallResult, Entry
from dutiful.core.errors import ClaimLost
from dutiful.core.outcome import Snoozed
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import ClaimRequest, Completion, QueueLevel
from dutiful.store.control import PauseScope
from dutiful.store.queries import JobFilter
from suite.builders import ADA, LEASE, OOPS, change, new_job, pause, rescue, token
from suite.workers import serve

pytestmark = pytest.mark.req("L56", "L57", "L58")

NAME, FREE, LEVEL = "email-service", "caller", QueueLevel("default", 100)
SERVED, GONE = ("mail", "post"), "gone"  # no worker serves the last one
GATED = (*SERVED, GONE)
ALWAYS = (
    *("start", "claim", "enqueue", "sweep", "pass_time", "renew", "complete", "release", "rescue", "open", "reset"),
    *("declare", "pause", "resume", "wait", "give_up"),
)
# Actions that change each state come more often, so that a short run goes through all states.
ACTIONS = {
    "closed": [*ALWAYS, *("enter", "exit") * 8, "start", "enqueue"],
    "open": [*ALWAYS, *("pass_time",) * 8, *("enter", "exit", "sweep", "start", "give_up") * 2],
    "half_open": [*ALWAYS, *("enter", "exit") * 6, *("claim", "sweep", "start", "give_up") * 4],
}
PICK = st.integers(0, 1000)


class BreakerMachine(RuleBasedStateMachine):
    def __init__(self, store: Store, run: Run) -> None:
        super().__init__()
        self.store, self.run = store, run
        self.renewer = store.claims.renewer()

    @initialize(probes=st.integers(1, 3))
    def declare(self, probes: int) -> None:
        self.model = BreakerModel(BreakerPolicy(failures=2, open_for=timedelta(seconds=5), probes=probes))
        self.model.declared = {*GATED}
        kinds = dict.fromkeys(GATED, NAME)
        self.run(self.store.breakers.put_kinds(kinds, {NAME: self.model.policy}, now=self.model.now))
        self.run(serve(self.store, [*SERVED, FREE], general=["*"], ttl=timedelta(days=3650)))

    def teardown(self) -> None:
        self.renewer.close()
        assert self.run(self.store.queries.check_places()) == []

    @rule(pick=PICK, data=st.data())
    def step(self, pick: int, data: st.DataObject) -> None:
        callers = self.model.callers
        self.model.now += timedelta(microseconds=1)  # so that no two pauses are of the same moment
        match act := data.draw(st.sampled_from(ACTIONS[self.model.state]), "action"):
            case "start":
                if pick % 3:
                    self._insert(FREE)
                self._claim([FREE])
            case "enqueue":
                self._insert(GATED[pick % len(GATED)])
            case "claim":
                held = self.model.paused | (self.model.declared if self.model.state == "open" else set())
                assert not held & {*self._claim(SERVED)}, "claimed while it was open, or paused"
            case "declare":
                self.declare_or_not(SERVED[1])
            case "pause" | "resume":
                self.pause_or_resume(act, SERVED[pick % 2])
            case "wait":
                self.wait()
            case "enter" if callers:
                # Expired claims call, too, but less often.
                living = [caller for caller in callers if self.model.live(caller)]
                some = living if living and pick % 4 else callers
                self.enter(some[-1 - pick // 4 % min(len(some), 6)])
            case "exit":
                given = [(caller, entry) for caller in callers for entry in caller.entries]
                if given:
                    result = data.draw(
                        st.sampled_from(
                            [CallResult.GOOD, CallResult.BAD, CallResult.BAD, CallResult.NEUTRAL, CallResult.UNCLEAR]
                        )
                    )
                    self.exit(*given[-1 - pick % min(len(given), 6)], result)
            case "give_up":
                self.give_up([caller for caller in callers if caller.held and caller.claim.kind == FREE], pick)
            case "pass_time":
                self.model.now += timedelta(seconds=[1, 6, 6, 31][pick % 4])
            case "renew" | "complete" | "release" if callers:
                self.end_or_renew(act, callers[-1 - pick % min(len(callers), 6)])
            case "rescue":
                self._rescue()
            case "open":
                self.model.open(timedelta(seconds=4))
                self.run(self.store.breakers.open(NAME, timedelta(seconds=4), now=self.model.now))
            case "reset":
                self.model.close()
                self.run(self.store.breakers.reset(NAME, now=self.model.now))
            case "sweep":
                self.sweep()

    def enter(self, caller: Caller) -> None:
        expected = self.model.enter(caller)
        call = self.store.breakers.enter(NAME, self.model.policy, token(caller.claim), now=self.model.now)
        if expected == "lost":
            with pytest.raises(ClaimLost):
                self.run(call)
            return
        assert self.run(call) == expected
        if isinstance(expected, Entry):
            assert self.model.state != "open", "admitted while it was open"
            caller.entries.append(expected)

    def exit(self, caller: Caller, entry: Entry, result: CallResult) -> None:
        model = self.model
        call = self.store.breakers.exit(NAME, model.policy, token(caller.claim), entry, result, now=model.now)
        after = self.run(call)
        ignored = (after.round, after.successes, after.neutral) == (model.round, model.successes, model.neutral)
        if entry.probe and ignored and caller in model.probers and not model.live(caller):
            model.probers.remove(caller)  # a sweep may have given the probe of an expired lease to another job
        else:
            model.exit(caller, entry, result)
        assert after.state == model.state

    def give_up(self, callers: list[Caller], pick: int) -> None:
        """A caller that is rejected, or was lately, waits for the breaker."""
        if callers:
            caller = callers[-1 - pick % min(len(callers), 6)]
            rejected = change(caller.claim, Snoozed(timedelta(0), {**OOPS, "breaker": NAME}))
            assert self.run(self.store.claims.settle([rejected], now=self.model.now)) == []
            caller.held = False
            (record,) = self.run(self.store.breakers.all(now=self.model.now))
            assert record.waiting or self.model.state == "closed"

    def end_or_renew(self, act: str, caller: Caller) -> None:
        match act:
            case "renew":
                self.renewer.renew([token(caller.claim)], LEASE, now=self.model.now)
                caller.lease_ends = self.model.now + LEASE if caller.held else caller.lease_ends
            case "release":
                self.renewer.release([token(caller.claim)])
                caller.held = False
            case "complete":
                done = Completion(caller.claim.job_id, caller.claim.claim_id)
                self.run(self.store.claims.complete([done], now=self.model.now))
                caller.held = False

    def declare_or_not(self, kind: str) -> None:
        self.model.declared ^= {kind}
        name = NAME if kind in self.model.declared else None
        self.run(self.store.breakers.put_kinds({kind: name}, now=self.model.now))

    def pause_or_resume(self, act: str, kind: str) -> None:
        if act == "resume":
            self.model.paused.discard(kind)
            self.run(self.store.control.resume(PauseScope.KIND, kind))
        elif kind not in self.model.paused:
            self.model.paused.add(kind)
            self.run(pause(self.store, PauseScope.KIND, kind, now=self.model.now))

    def sweep(self) -> dict[str, list[UUID]]:
        """Returns the released jobs by kind."""
        model, before, rejected = self.model, self._gated(), self._rejected()
        room = model.policy.probes if model.due() else model.policy.probes - model.successes - model.probing()
        if model.due():
            model.half_open()
        self.run(self.store.promotion.sweep(100, now=model.now))
        freed = rejected - self._rejected()
        if model.state == "closed":
            assert freed == rejected, "no job waits for a closed one"
        else:
            assert len(freed) == (min(len(rejected), max(room, 0)) if model.state == "half_open" else 0)
        after = self._gated()
        released: dict[str, list[UUID]] = {kind: [] for kind in GATED}
        for kind, jobs in after.items():
            released[kind] = [
                job for job, state in jobs.items() if state is State.READY and before[kind][job] is State.BLOCKED
            ]
            gated = kind in model.declared and model.state != "closed"
            if kind in model.paused or (gated and model.state == "open"):
                assert State.READY not in jobs.values()
            elif not gated:
                assert State.BLOCKED not in jobs.values()
        if model.state == "half_open":
            room = model.policy.probes - model.successes - model.probing()
            assert sum(len(released[kind]) for kind in model.declared) <= max(room, 0)
            assert not released[GONE], "no worker serves it"
            idle = not {State.READY, State.RUNNING} & {state for jobs in before.values() for state in jobs.values()}
            free = {*SERVED} & model.declared - model.paused
            if room > 0 and idle and any(State.BLOCKED in before[kind].values() for kind in free):
                assert any(released.values()), "no job is released as a probe"
        return released

    def wait(self) -> None:
        """If only sweeps happen, each kind that is served and not paused gets a job released."""
        waiting = {
            kind for kind, jobs in self._gated().items() if kind in SERVED and State.BLOCKED in jobs.values()
        } - self.model.paused
        for _ in range(2 + len(SERVED)):
            if not waiting:
                return
            self.model.now += LEASE + timedelta(seconds=1)
            self._rescue()
            waiting -= {kind for kind, jobs in self.sweep().items() if jobs}
        assert not waiting, "they wait without end"

    @invariant()
    def store_and_model_agree(self) -> None:
        (record,) = self.run(self.store.breakers.all(now=self.model.now))
        found, model = record.breaker, self.model
        assert (found.state, found.round, found.trips) == (model.state, model.round, model.trips)
        counted = found.successes, found.neutral, record.probing
        assert counted == (model.successes, model.neutral, model.probing())
        assert found.open_until == model.open_until or model.state == "half_open"
        assert model.state != "closed" or found.failures == model.failures
        assert record.probing + found.successes <= model.policy.probes or model.state != "half_open"

    def _insert(self, kind: str) -> None:
        self.run(self.store.jobs.insert([new_job(kind=kind)], now=self.model.now))

    def _rescue(self) -> None:
        assert self.run(rescue(self.store, now=self.model.now)) == []
        for caller in self.model.callers:
            caller.held = caller.held and caller.lease_ends > self.model.now

    def _claim(self, kinds: Sequence[str]) -> list[str]:
        """The kinds of the jobs."""
        ask = ClaimRequest(ADA, "general", [LEVEL], kinds, limit=1, lease=LEASE, suspects=1)
        claims = self.run(self.store.claims.claim(ask, now=self.model.now))
        self.model.callers += [Caller(claim, self.model.now + LEASE) for claim in claims]
        return [claim.kind for claim in claims]

    def _rejected(self) -> set[UUID]:
        """Jobs that wait because a call inside their handlers was rejected."""
        found = self.run(self.store.queries.jobs(JobFilter(kind=FREE, state=State.BLOCKED, limit=10_000)))
        return {record.id for record in found}

    def _gated(self) -> dict[str, dict[UUID, State]]:
        found: dict[str, dict[UUID, State]] = {kind: {} for kind in (*GATED, FREE)}
        for record in self.run(self.store.queries.jobs(JobFilter(limit=10_000))):
            found[record.kind][record.id] = record.state
        return {kind: found[kind] for kind in GATED}


@each_length(15, steps=100)
def test_a_breaker_of_sqlite_agrees_with_the_model(tmp_path: Path, sqlite_template: Path, length: settings) -> None:
    simulate_sqlite(BreakerMachine, tmp_path, sqlite_template, length)


@each_length(15, steps=100)
def test_a_breaker_of_postgres_agrees_with_the_model(clean18: CleanDatabase, length: settings) -> None:
    simulate_postgres(BreakerMachine, clean18, settings(length, max_examples=length.max_examples // 3))
