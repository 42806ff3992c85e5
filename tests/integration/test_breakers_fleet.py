"""One failing service and many worker processes, which share its breaker; the breaker outlives them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import breaker_jobs
import pytest
from breaker_jobs import analyse, call
from fault_jobs import address

from dutiful import State
from dutiful.core.breaker.state import Breaker, BreakerState
from dutiful.kind import Handle
from dutiful.operator import Operator
from dutiful.store import Store
from faults import Fleet, until

MOMENT = timedelta(milliseconds=10)


@asynccontextmanager
async def fleet(store: Store, folder: Path) -> AsyncIterator[Fleet]:
    breaker_jobs.app.configure(database_url=address(store))
    environment = {"BREAKER_DIARY": str(folder / "diary"), "BREAKER_GRID": str(folder / "grid")}
    path = Path(__file__).parent
    async with (
        breaker_jobs.app,
        Fleet("breaker_jobs:app", address(store), folder=folder, path=path, environment=environment) as started,
    ):
        yield started


@pytest.mark.req("L27", "L48", "L55", "L57", "L58", "L90", "L91")
async def test_a_fleet_makes_no_call_while_a_breaker_is_open_and_only_probes_while_it_is_half_open(
    store: Store, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"

    def set_grid(state: str) -> None:
        """Replace the file atomically, because workers read it at any time."""
        (tmp_path / "new").write_text(state)
        (tmp_path / "new").replace(tmp_path / "grid")

    def calls() -> int:
        return len(diary.read_text().splitlines())

    async def breaker() -> Breaker:
        (found,) = await store.breakers.all()
        return found.breaker

    async def stand(jobs: list[Handle[Any]], *states: State) -> bool:
        records = [await store.queries.job(job.id) for job in jobs]
        return all(record is not None and record.state in states for record in records)

    async def came(number: int) -> bool:
        return calls() >= number

    async def rejected_at(jobs: list[Handle[Any]]) -> list[datetime]:
        """When each of them was rejected last."""
        tried = [await store.queries.attempts(job.id) for job in jobs]
        return [max(a.ended_at for a in attempts if a.outcome == "snoozed") for attempts in tried]

    async with fleet(store, tmp_path) as workers:
        operator: Operator = await breaker_jobs.app.operator()
        set_grid("down")
        for worker in [workers.start() for _ in range(2)]:
            await worker.ready(store)
        first = await call.enqueue_many({} for _ in range(12))
        await until(lambda: stand(list(first), State.SCHEDULED, State.BLOCKED), "all have failed or were rejected")
        opened = await breaker()
        assert (opened.state, opened.trips) == (BreakerState.OPEN, 1)
        made = calls()
        assert made >= 3

        # Open: no worker calls, not even one that was started after the failures.
        await workers.start().ready(store)
        inside = await call.enqueue_many({} for _ in range(6))
        declared = await analyse.enqueue_many({} for _ in range(6))
        await until(lambda: stand(list(inside), State.BLOCKED), "jobs wait that were rejected inside their handler")
        await until(lambda: stand(list(declared), State.BLOCKED), "jobs wait whose kind is blocked")
        assert calls() == made

        # Half-open: two calls probe, and the others are rejected meanwhile.
        set_grid("held")
        forced = await operator.breakers.open("grid", MOMENT, "to be half-open soon", new=True)
        assert forced.opened_at is not None and forced.opened_at > (opened.opened_at or forced.opened_at)
        await until(lambda: came(made + 2), "the probes have called")
        before = await rejected_at(list(inside))
        for job in inside:
            await store.control.run_now(job.id)

        async def rejected_again() -> bool:
            again = [one < two for one, two in zip(before, await rejected_at(list(inside)), strict=True)]
            return sum(again) >= len(inside) - 2  # if a minute has passed, two of them may probe

        await until(rejected_again, "the others were rejected again")
        assert calls() == made + 2
        set_grid("down")

        async def tripped() -> bool:
            return (await breaker()).trips == 2

        await until(tripped, "a probe that failed has opened it again")
        assert (await breaker()).state is BreakerState.OPEN
        assert calls() == made + 2

        # Closed: the probes close it, and all waiting jobs run.
        set_grid("up")
        await operator.breakers.open("grid", MOMENT, new=True)

        async def closed() -> bool:
            return (await breaker()).state is BreakerState.CLOSED

        await until(closed, "its probes have closed it")
        jobs = [*first, *inside, *declared]

        async def all_done() -> bool:
            for job in jobs:
                record = await store.queries.job(job.id)
                if record is not None and record.state is State.SCHEDULED:
                    await store.control.run_now(job.id)  # a retry
            return await stand(jobs, State.COMPLETED)

        await until(all_done, "every job is done")
        spent = [(await store.queries.job(job.id)).attempt for job in inside]  # type: ignore[union-attr]
        assert spent.count(1) >= len(inside) - 2
    assert await store.queries.check_places() == []
