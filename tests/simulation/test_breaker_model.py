"""Breakers of both stores against one model: whoever enters, leaves, dies or interferes, in whatever order."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from breaker_model import BreakerModel, Caller
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from databases import CleanDatabase
from dutiful.core.breaker import BreakerPolicy, Entry, Sign
from dutiful.core.errors import ClaimLost
from dutiful.core.transitions import State
from dutiful.reading import JobFilter
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.sqlite import SqliteStore
from dutiful.testing.store_suite.builders import ADA, LEASE, new_id, new_job, rescue, token
from dutiful.working import Ask, Completion, Line

pytestmark = pytest.mark.req("L56", "L57", "L58")

Run = Callable[[Awaitable[Any]], Any]

# The short run is the same each time; the long one, of `make soak`, looks for what is new and shrinks what it finds.
SHORT = settings(
    max_examples=15,
    stateful_step_count=60,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
LONG = settings(
    SHORT,
    max_examples=int(os.environ.get("DUTIFUL_SOAK_EXAMPLES", "1000")),
    stateful_step_count=100,
    derandomize=False,
    print_blob=True,
    phases=[Phase.generate, Phase.shrink],
)
each_length = pytest.mark.parametrize(
    "length",
    [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(0)])],
)

NAME, GATED, FREE, LINE = "email-service", "mail", "caller", Line("default", 100)
ALWAYS = ("start", "claim", "enqueue", "sweep", "pass_time", "renew", "complete", "release", "rescue", "force", "reset")
# More of what leads somewhere from there, so that a short run comes round often.
ACTS = {
    "closed": [*ALWAYS, *("enter", "leave") * 8, "start", "enqueue"],
    "open": [*ALWAYS, *("pass_time",) * 8, *("enter", "leave", "sweep", "start") * 2],
    "half_open": [*ALWAYS, *("enter", "leave") * 6, *("claim", "sweep", "start") * 4],
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
        self.run(self.store.put_breaker_kinds({GATED: NAME}, {NAME: self.model.policy}, now=self.model.now))

    def teardown(self) -> None:
        self.keeper.close()
        assert self.run(self.store.check_places()) == []

    @rule(pick=PICK, data=st.data())
    def step(self, pick: int, data: st.DataObject) -> None:
        callers = self.model.callers
        match act := data.draw(st.sampled_from(ACTS[self.model.state]), "act"):
            case "start":
                self._insert(FREE)
                self._claim([FREE])
            case "enqueue":
                self._insert(GATED)
            case "claim":
                assert not (self._claim([GATED]) and self.model.state == "open"), "claimed while it was open"
            case "enter" if callers:
                # The dead are asked for too, but not most of the time.
                living = [caller for caller in callers if self.model.live(caller)]
                some = living if living and pick % 4 else callers
                self.enter(some[-1 - pick // 4 % min(len(some), 6)])
            case "leave":
                given = [(caller, entry) for caller in callers for entry in caller.entries]
                if given:
                    sign = data.draw(st.sampled_from([Sign.GOOD, Sign.BAD, Sign.BAD, Sign.UNCLEAR]))
                    self.leave(*given[-1 - pick % min(len(given), 6)], sign)
            case "pass_time":
                self.model.now += timedelta(seconds=[1, 6, 6, 31][pick % 4])
            case "renew" | "complete" | "release" if callers:
                self.end_or_renew(act, callers[-1 - pick % min(len(callers), 6)])
            case "rescue":
                assert self.run(rescue(self.store, now=self.model.now)) == []
                for caller in callers:
                    caller.held = caller.held and caller.lease_ends > self.model.now
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
        self.model.leave(caller, entry, sign)
        call = self.store.leave_breaker(NAME, self.model.policy, token(caller.claim), entry, sign, now=self.model.now)
        assert self.run(call).state == self.model.state

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

    def sweep(self) -> None:
        before = self._gated()
        if self.model.due():
            self.model.half_open()
        self.run(self.store.sweep(100, now=self.model.now))
        after = self._gated()
        let_out = [job for job, state in after.items() if state is State.READY and before[job] is State.BLOCKED]
        match self.model.state:
            case "open":
                assert State.READY not in after.values()
            case "closed":
                assert State.BLOCKED not in after.values()
            case "half_open":
                room = self.model.policy.probes - self.model.successes - self.model.probing()
                assert len(let_out) <= max(room, 0)
                idle = not {State.READY, State.RUNNING} & {*before.values()}
                if room > 0 and idle and State.BLOCKED in before.values():
                    assert let_out, "nobody is let out to find out"

    @invariant()
    def store_and_model_agree(self) -> None:
        (record,) = self.run(self.store.breakers(now=self.model.now))
        found, model = record.breaker, self.model
        assert (found.state, found.round, found.trips) == (model.state, model.round, model.trips)
        assert (found.successes, record.probing) == (model.successes, model.probing())
        assert found.open_until == model.open_until or model.state == "half_open"
        assert model.state != "closed" or found.failures == model.failures
        assert record.probing + found.successes <= model.policy.probes or model.state != "half_open"

    def _insert(self, kind: str) -> None:
        self.run(self.store.insert([new_job(kind=kind)], now=self.model.now))

    def _claim(self, kinds: list[str]) -> int:
        ask = Ask(ADA, "general", [LINE], kinds, limit=1, lease=LEASE, suspects=1)
        claims = self.run(self.store.claim(ask, now=self.model.now))
        self.model.callers += [Caller(claim, self.model.now + LEASE) for claim in claims]
        return len(claims)

    def _gated(self) -> dict[UUID, State]:
        page = self.run(self.store.jobs(JobFilter(kind=GATED, limit=10_000)))
        return {record.id: record.state for record in page}


@pytest.fixture
def run() -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield lambda call: runner.run(_awaited(call))


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call


@each_length
def test_a_breaker_of_sqlite_agrees_with_the_model(tmp_path: Path, run: Run, length: settings) -> None:
    stores: list[Store] = []

    def machine() -> BreakerMachine:
        while stores:
            run(stores.pop().close())
        stores.append(store := SqliteStore(tmp_path / f"{new_id()}.db", synchronous="OFF"))
        run(store.open())
        return BreakerMachine(store, run)

    simulate(machine, length)
    run(stores.pop().close())


@each_length
def test_a_breaker_of_postgres_agrees_with_the_model(clean18: CleanDatabase, run: Run, length: settings) -> None:
    store = PostgresStore(clean18.reset())
    run(store.open())

    def machine() -> BreakerMachine:
        clean18.reset(alone=False)
        return BreakerMachine(store, run)

    simulate(machine, settings(length, max_examples=length.max_examples // 3))
    run(store.close())


def simulate(machine: Any, length: settings) -> None:
    """Run what `machine` makes; the annotation of Hypothesis asks for a class, but any callable will do."""
    run_state_machine_as_test(machine, settings=length)
