"""Why isn't this job running? Every answer, on both stores."""

import asyncio
import os
import shlex
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from command_line import Project

from dutiful.client.client import Client
from dutiful.core.outcome import Failed, Lost, Snoozed
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.operator import Operator
from dutiful.operator.explain import Explanation, Why
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.workers import LaneRecord, WorkerRecord
from suite.builders import OOPS, enqueue_one, finish_one, settle, start_one


def now() -> datetime:
    return datetime.now(UTC)


async def explain(store: Store, job_id: UUID) -> Explanation:
    return await Operator(Client(store, InProcessDelivery())).jobs.explain(job_id)


async def start_worker(
    store: Store, *, queues: list[str], kinds: list[str], busy: int = 0, id: UUID | None = None, pid: int | None = None
) -> None:
    """A worker that is alive as long as its process is, by default this one."""
    lanes = {"general": LaneRecord(slots=2, queues=tuple(queues), busy=busy)}
    worker = WorkerRecord(
        id=id or uuid4(), name="w1", host=socket.gethostname(), pid=pid or os.getpid(), started_at=now(), seen_at=now(),
        lanes=lanes, kinds=kinds,
    )  # fmt: skip
    await store.workers.heartbeat(worker, timedelta(minutes=5))


async def pause(store: Store, scope: PauseScope, name: str) -> None:
    await Operator(Client(store, InProcessDelivery()), "ada").fleet.pause(scope, name, "incident 12")


async def test_the_process_of_its_worker_has_ended(store: Store) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "60")
    claimed = await start_one(store, now=now())
    job = await store.queries.job(claimed.job_id)
    assert job is not None and job.worker_id is not None
    await start_worker(store, queues=["*"], kinds=["greet"], id=job.worker_id, pid=process.pid)
    running = await explain(store, claimed.job_id)
    process.kill()
    await process.wait()

    alone = await explain(store, claimed.job_id)
    await start_worker(store, queues=["*"], kinds=["greet"])
    rescued = await explain(store, claimed.job_id)

    assert (running.code, alone.code, rescued.code) == (Why.RUNNING, Why.WORKER_ENDED, Why.WORKER_ENDED)
    assert "a live worker rescues it when its lease is over, in " in alone.sentence
    assert alone.remedy is not None and "dutiful worker" in alone.remedy
    assert rescued.remedy is None


async def test_no_worker_leads_and_makes_it_ready(store: Store) -> None:
    worker_id, due = uuid4(), now() - timedelta(minutes=1)
    job_id = await enqueue_one(store, run_at=due, now=due - timedelta(minutes=1))
    await start_worker(store, queues=["*"], kinds=["greet"], id=worker_id)

    alone = await explain(store, job_id)
    await store.leadership.survey(worker_id, timedelta(minutes=1))
    await start_worker(store, queues=["*"], kinds=["greet"], id=worker_id)  # its next heartbeat
    led = await explain(store, job_id)

    assert (alone.code, led.code) == (Why.NO_LEADER, Why.NEXT)
    assert alone.remedy is not None and "--no-services" in alone.remedy


async def test_it_is_not_due(store: Store) -> None:
    job_id = await enqueue_one(store, run_at=now() + timedelta(hours=2, minutes=30), now=now())

    why = await explain(store, job_id)

    assert why.code is Why.NOT_DUE
    assert ", in 2h" in why.sentence
    assert why.remedy


async def test_it_waits_for_its_retry_after_an_error(store: Store) -> None:
    claimed = await start_one(store, now=now())
    await settle(store, claimed, Failed(OOPS), now=now())

    why = await explain(store, claimed.job_id)

    assert why.code is Why.RETRY
    assert "attempt 1 of 5 ended with ValueError: oops" in why.sentence


async def test_it_asked_to_be_run_later(store: Store) -> None:
    claimed = await start_one(store, now=now())
    await settle(store, claimed, Snoozed(timedelta(hours=1)), now=now())

    assert (await explain(store, claimed.job_id)).code is Why.SNOOZED


async def test_no_worker_is_alive(store: Store) -> None:
    why = await explain(store, await enqueue_one(store, now=now()))

    assert why.code is Why.NO_WORKER
    assert why.remedy
    assert "dutiful worker" in why.remedy


async def test_no_worker_serves_its_queue(store: Store) -> None:
    await start_worker(store, queues=["fast"], kinds=["greet"])

    why = await explain(store, await enqueue_one(store, queue="slow", now=now()))

    assert why.code is Why.QUEUE_UNSERVED
    assert "'slow'" in why.sentence


async def test_no_worker_knows_its_kind(store: Store) -> None:
    await start_worker(store, queues=["*"], kinds=["other"])

    why = await explain(store, await enqueue_one(store, now=now()))

    assert why.code is Why.KIND_UNKNOWN
    assert "'greet'" in why.sentence


@pytest.mark.parametrize(
    ("scope", "name", "code"),
    [
        (PauseScope.KIND, "greet", Why.KIND_PAUSED),
        (PauseScope.QUEUE, "default", Why.QUEUE_PAUSED),
        (PauseScope.LANE, "general", Why.LANE_PAUSED),
        (PauseScope.LANE, "*", Why.LANE_PAUSED),
    ],
)
@pytest.mark.parametrize("swept", [False, True])
async def test_it_is_paused(store: Store, scope: PauseScope, name: str, code: Why, swept: bool) -> None:
    await start_worker(store, queues=["*"], kinds=["greet"])
    job_id = await enqueue_one(store, now=now())
    await pause(store, scope, name)
    if swept:
        await store.promotion.sweep(10)

    why = await explain(store, job_id)

    assert why.code is code
    assert "by ada: incident 12" in why.sentence
    assert why.remedy == f"`dutiful resume {scope} {shlex.quote(name)}`"


async def test_it_depends_on_jobs_that_have_not_completed(store: Store) -> None:
    done, need = await finish_one(store, now=now()), await enqueue_one(store, kind="other", now=now())
    job_id = await enqueue_one(store, depends_on=(done, need), now=now())

    why = await explain(store, job_id)

    assert why.code is Why.DEPENDENCY
    assert "(other, ready)" in why.sentence
    assert "completed)" not in why.sentence


async def test_others_are_ahead_of_it(store: Store) -> None:
    await start_worker(store, queues=["*"], kinds=["greet"], busy=2)
    jobs = [await enqueue_one(store, priority=priority, now=now()) for priority in (100, 200, 100, 50)]

    ahead = [await explain(store, job_id) for job_id in jobs]

    assert [why.code for why in ahead] == [Why.WAITING_FOR_SLOT, Why.WAITING_FOR_SLOT, Why.WAITING_FOR_SLOT, Why.NEXT]
    assert "about 1 job is ahead" in ahead[0].sentence
    assert "about 3 jobs are ahead" in ahead[1].sentence
    assert "2 of the 2 slots that serve its queue 'default' were busy at the last heartbeat" in ahead[1].sentence


async def test_it_may_have_killed_a_worker(store: Store) -> None:
    await start_worker(store, queues=["*"], kinds=["greet"])
    claimed = await start_one(store, now=now())
    await settle(store, claimed, Lost(), now=now())

    assert (await explain(store, claimed.job_id)).code is Why.SUSPECT


async def test_it_runs_it_is_stopping_or_its_worker_is_gone(store: Store) -> None:
    running, stopping = await start_one(store, now=now()), await start_one(store, now=now())
    await store.control.cancel(stopping.job_id, "no use")
    expired = await start_one(store, now=now() - timedelta(hours=1))

    codes = [(await explain(store, claimed.job_id)).code for claimed in (running, stopping, expired)]

    assert codes == [Why.RUNNING, Why.STOPPING, Why.LEASE_EXPIRED]


async def test_it_has_ended(store: Store) -> None:
    done, failed = await finish_one(store, now=now()), await finish_one(store, Failed(OOPS, final=True), now=now())

    assert (await explain(store, done)).remedy is None
    why = await explain(store, failed)
    assert (why.code, why.sentence.startswith("has ended as failed")) == (Why.FINISHED, True)
    assert why.remedy


@pytest.mark.parametrize("backend", ["sqlite"])
async def test_the_command_prints_the_reason_and_the_remedy(store: Store, tmp_path: Path) -> None:
    job_id = await enqueue_one(store, now=now())

    out = Project(tmp_path, store.url).write_jobs().run("jobs", "show", str(job_id)).out

    assert "It waits because no worker is alive." in out
    assert "→ start one with `dutiful worker`" in out
