"""Breakers of both stores against one model: whoever enters, leaves, dies or interferes, in whatever order."""

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
from dutiful.acting import PauseScope
from dutiful.core.breaker import BreakerPolicy, Entry, Sign
from dutiful.core.errors import ClaimLost
from dutiful.core.outcome import Snoozed
from dutiful.core.transitions import State
from dutiful.reading import JobFilter
from dutiful.store import Store
from dutiful.testing.store_suite.breaker_probe import serve
from dutiful.testing.store_suite.builders import ADA, LEASE, OOPS, change, new_job, pause, rescue, token
from dutiful.working import Ask, Completion, Line

pytestmark = pytest.mark.req("L56", "L57", "L58")

NAME, FREE, LINE = "email-service", "caller", Line("default", 100)
SERVED, GONE = ("mail", "post"), "gone"  # nobody serves the last one
GATED = (*SERVED, GONE)
ALWAYS = (
    *("start", "claim", "enqueue", "sweep", "pass_time", "renew", "complete", "release", "rescue", "force", "reset"),
    *("declare", "pause", "resume", "wait", "give_up"),
)
# More of what leads somewhere from there, so that a short run comes round often.
ACTS = {
    "closed": [*ALWAYS, *("enter", "leave") * 8, "start", "enqueue"],
    "open": [*ALWAYS, *("pass_time",) * 8, *("enter", "leave", "sweep", "start", "give_up") * 2],
    "half_open": [*ALWAYS, *("enter", "leave") * 6, *("claim", "sweep", "start", "give_up") * 4],
}
PICK = st.integers(0, 1000)


class BreakerMachine(RuleBasedStateMachine):
    def __init__(self, store: Store, run: Run) -> None:
        super().__init__()
        self.store, self.run = store, run
        self.keeper = store.keeper()

    @initialize(probes=st.integers(1, 3))
    def declare(self, probes: int) -> None:
        self.model = BreakerModel(BreakerPolicy(failures=2, open_for=timedelta(seconds=5), probes=probes))
        self.model.declared = {*GATED}
        kinds = dict.fromkeys(GATED, NAME)
        self.run(self.store.put_breaker_kinds(kinds, {NAME: self.model.policy}, now=self.model.now))
        self.run(serve(self.store, [*SERVED, FREE], general=["*"], ttl=timedelta(days=3650)))

    def teardown(self) -> None:
        self.keeper.close()
        assert self.run(self.store.check_places()) == []

    @rule(pick=PICK, data=st.data())
    def step(self, pick: int, data: st.DataObject) -> None:
        callers = self.model.callers
        self.model.now += timedelta(microseconds=1)  # so that no two pauses are of the same moment
        match act := data.draw(st.sampled_from(ACTS[self.model.state]), "act"):
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
                # The dead are asked for too, but not most of the time.
                living = [caller for caller in callers if self.model.live(caller)]
                some = living if living and pick % 4 else callers
                self.enter(some[-1 - pick // 4 % min(len(some), 6)])
            case "leave":
                given = [(caller, entry) for caller in callers for entry in caller.entries]
                if given:
                    sign = data.draw(st.sampled_from([Sign.GOOD, Sign.BAD, Sign.BAD, Sign.NEUTRAL, Sign.UNCLEAR]))
                    self.leave(*given[-1 - pick % min(len(given), 6)], sign)
            case "give_up":
                self.give_up([caller for caller in callers if caller.held and caller.claim.kind == FREE], pick)
            case "pass_time":
                self.model.now += timedelta(seconds=[1, 6, 6, 31][pick % 4])
            case "renew" | "complete" | "release" if callers:
                self.end_or_renew(act, callers[-1 - pick % min(len(callers), 6)])
            case "rescue":
                self._rescue()
            case "force":
                self.model.open(timedelta(seconds=4))
                self.run(self.store.force_breaker(NAME, timedelta(seconds=4), now=self.model.now))
            case "reset":
                self.model.close()
                self.run(self.store.reset_breaker(NAME, now=self.model.now))
            case "sweep":
                self.sweep()

    def enter(self, caller: Caller) -> None:
        expected = self.model.enter(caller)
        call = self.store.enter_breaker(NAME, self.model.policy, token(caller.claim), now=self.model.now)
        if expected == "lost":
            with pytest.raises(ClaimLost):
                self.run(call)
            return
        assert self.run(call) == expected
        if isinstance(expected, Entry):
            assert self.model.state != "open", "let in while it was open"
            caller.entries.append(expected)

    def leave(self, caller: Caller, entry: Entry, sign: Sign) -> None:
        model = self.model
        call = self.store.leave_breaker(NAME, model.policy, token(caller.claim), entry, sign, now=model.now)
        after = self.run(call)
        unheard = (after.round, after.successes, after.neutral) == (model.round, model.successes, model.neutral)
        if entry.probe and unheard and caller in model.places and not model.live(caller):
            model.places.remove(caller)  # a sweep may have given the place of one whose lease is over to another
        else:
            model.leave(caller, entry, sign)
        assert after.state == model.state

    def give_up(self, callers: list[Caller], pick: int) -> None:
        """A caller that is refused, or was lately, waits for the breaker."""
        if callers:
            caller = callers[-1 - pick % min(len(callers), 6)]
            refused = change(caller.claim, Snoozed(timedelta(0), {**OOPS, "breaker": NAME}))
            assert self.run(self.store.settle([refused], now=self.model.now)) == []
            caller.held = False
            (record,) = self.run(self.store.breakers(now=self.model.now))
            assert record.waiting or self.model.state == "closed"

    def end_or_renew(self, act: str, caller: Caller) -> None:
        match act:
            case "renew":
                self.keeper.renew([token(caller.claim)], LEASE, now=self.model.now)
                caller.lease_ends = self.model.now + LEASE if caller.held else caller.lease_ends
            case "release":
                self.keeper.release([token(caller.claim)])
                caller.held = False
            case "complete":
                done = Completion(caller.claim.job_id, caller.claim.claim_id)
                self.run(self.store.complete([done], now=self.model.now))
                caller.held = False

    def declare_or_not(self, kind: str) -> None:
        self.model.declared ^= {kind}
        name = NAME if kind in self.model.declared else None
        self.run(self.store.put_breaker_kinds({kind: name}, now=self.model.now))

    def pause_or_resume(self, act: str, kind: str) -> None:
        if act == "resume":
            self.model.paused.discard(kind)
            self.run(self.store.resume(PauseScope.KIND, kind))
        elif kind not in self.model.paused:
            self.model.paused.add(kind)
            self.run(pause(self.store, PauseScope.KIND, kind, now=self.model.now))

    def sweep(self) -> dict[str, list[UUID]]:
        """By kind, the jobs that it has let out."""
        model, before, barred = self.model, self._gated(), self._barred()
        room = model.policy.probes if model.due() else model.policy.probes - model.successes - model.probing()
        if model.due():
            model.half_open()
        self.run(self.store.sweep(100, now=model.now))
        let_go = barred - self._barred()
        if model.state == "closed":
            assert let_go == barred, "nobody waits for a closed one"
        else:
            assert len(let_go) == (min(len(barred), max(room, 0)) if model.state == "half_open" else 0)
        after = self._gated()
        let_out: dict[str, list[UUID]] = {kind: [] for kind in GATED}
        for kind, jobs in after.items():
            let_out[kind] = [
                job for job, state in jobs.items() if state is State.READY and before[kind][job] is State.BLOCKED
            ]
            gated = kind in model.declared and model.state != "closed"
            if kind in model.paused or (gated and model.state == "open"):
                assert State.READY not in jobs.values()
            elif not gated:
                assert State.BLOCKED not in jobs.values()
        if model.state == "half_open":
            room = model.policy.probes - model.successes - model.probing()
            assert sum(len(let_out[kind]) for kind in model.declared) <= max(room, 0)
            assert not let_out[GONE], "nobody serves it"
            idle = not {State.READY, State.RUNNING} & {state for jobs in before.values() for state in jobs.values()}
            free = {*SERVED} & model.declared - model.paused
            if room > 0 and idle and any(State.BLOCKED in before[kind].values() for kind in free):
                assert any(let_out.values()), "nobody is let out to find out"
        return let_out

    def wait(self) -> None:
        """If nobody does anything but sweep, each kind that is served and not paused gets a job out."""
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
        (record,) = self.run(self.store.breakers(now=self.model.now))
        found, model = record.breaker, self.model
        assert (found.state, found.round, found.trips) == (model.state, model.round, model.trips)
        counted = found.successes, found.neutral, record.probing
        assert counted == (model.successes, model.neutral, model.probing())
        assert found.open_until == model.open_until or model.state == "half_open"
        assert model.state != "closed" or found.failures == model.failures
        assert record.probing + found.successes <= model.policy.probes or model.state != "half_open"

    def _insert(self, kind: str) -> None:
        self.run(self.store.insert([new_job(kind=kind)], now=self.model.now))

    def _rescue(self) -> None:
        assert self.run(rescue(self.store, now=self.model.now)) == []
        for caller in self.model.callers:
            caller.held = caller.held and caller.lease_ends > self.model.now

    def _claim(self, kinds: Sequence[str]) -> list[str]:
        """The kinds of the jobs."""
        ask = Ask(ADA, "general", [LINE], kinds, limit=1, lease=LEASE, suspects=1)
        claims = self.run(self.store.claim(ask, now=self.model.now))
        self.model.callers += [Caller(claim, self.model.now + LEASE) for claim in claims]
        return [claim.kind for claim in claims]

    def _barred(self) -> set[UUID]:
        """Those that wait because they were refused inside their handlers."""
        found = self.run(self.store.jobs(JobFilter(kind=FREE, state=State.BLOCKED, limit=10_000)))
        return {record.id for record in found}

    def _gated(self) -> dict[str, dict[UUID, State]]:
        found: dict[str, dict[UUID, State]] = {kind: {} for kind in (*GATED, FREE)}
        for record in self.run(self.store.jobs(JobFilter(limit=10_000))):
            found[record.kind][record.id] = record.state
        return {kind: found[kind] for kind in GATED}


@each_length(15, steps=100)
def test_a_breaker_of_sqlite_agrees_with_the_model(tmp_path: Path, sqlite_template: Path, length: settings) -> None:
    simulate_sqlite(BreakerMachine, tmp_path, sqlite_template, length)


@each_length(15, steps=100)
def test_a_breaker_of_postgres_agrees_with_the_model(clean18: CleanDatabase, length: settings) -> None:
    simulate_postgres(BreakerMachine, clean18, settings(length, max_examples=length.max_examples // 3))
