"""A database that is away for longer than a lease, while jobs wait in steps, for events, other jobs and limits."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import flow_jobs
from fault_jobs import address
from outages import AWAY_LINE, BACK_LINE, logged, warnings
from test_faults_outage import OUTAGES, away
from uuid_utils.compat import uuid7

from dutiful.core.states import State
from dutiful.core.steps import SentEvent
from dutiful.store import Store
from dutiful.store.queries import JobFilter
from faults import Fleet, until
from servers import PostgresServer

ONCE = [
    "before the sleep", "after the sleep", "heard ding", "heard dong", "step begun", "step done", "leads", "follows",
]  # fmt: skip


@OUTAGES
async def test_what_waits_is_neither_lost_nor_doubled_nor_stuck_by_an_outage(
    own_server: PostgresServer, own_store: Store, tmp_path: Path, outage: str
) -> None:
    diary, gate = tmp_path / "diary", tmp_path / "gate"
    url, app = address(own_store), flow_jobs.app
    app.configure(database_url=url)
    environment = {flow_jobs.DIARY: str(diary), "DUTIFUL_HEARTBEAT": "1s"}
    folder = Path(__file__).parent
    async with app, Fleet("flow_jobs:app", url, folder=tmp_path, path=folder, environment=environment) as fleet:
        for _ in range(2):
            await fleet.start("--lease", "3s", "--lane", "all=6").ready(own_store)
        first = await flow_jobs.leads.enqueue(str(gate))
        await app.enqueue("follows", {}, depends_on=[first.id])
        await flow_jobs.steps.enqueue(str(gate))
        await flow_jobs.alone.enqueue_many({"gate": str(gate)} for _ in range(3))
        early, late = await flow_jobs.hears.enqueue("early"), await flow_jobs.hears.enqueue("late")
        await flow_jobs.sleeps.enqueue()

        async def waiting() -> bool:
            counts = Counter(job.state for job in await own_store.queries.jobs(JobFilter(limit=20)))
            begun = set(diary.read_text().splitlines()) if diary.exists() else set()
            running = begun == {"leads", "step begun", "alone begins", "before the sleep"}
            return running and counts == {State.RUNNING: 3, State.BLOCKED: 5, State.SCHEDULED: 1}

        await until(waiting, "each waits in its way")
        await own_store.steps.send(
            SentEvent(uuid7(), "rung", "early", '"ding"'), timedelta(days=1)
        )  # stored, not delivered yet
        async with away(own_server, outage):
            gate.touch()  # what runs ends while its outcome cannot be stored

        async def sent() -> bool:
            await app.send_event("rung", "late", "dong")
            return True

        await until(sent, "the event is sent")

        async def drained() -> bool:
            return not await own_store.queries.queues()

        await until(drained, "every job is final")
        assert (await early.result("5s"), await late.result("5s")) == ("heard ding", "heard dong")
        if outage == "stopped":
            for worker in fleet.workers:
                await until(lambda worker=worker: logged(worker, BACK_LINE), "the outage is over")  # type: ignore[misc]
                assert warnings(worker) == [AWAY_LINE, BACK_LINE]

    words = diary.read_text().splitlines()
    assert Counter(words) == {**dict.fromkeys(ONCE, 1), "alone begins": 3, "alone ends": 3}
    turns = [word for word in words if word.startswith("alone")]
    assert turns == ["alone begins", "alone ends"] * 3
    jobs = await own_store.queries.jobs(JobFilter(limit=20))
    assert {(job.state, job.crashes) for job in jobs} == {(State.COMPLETED, 0)}
    assert await own_store.queries.check_places() == []
