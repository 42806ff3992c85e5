"""What services ask of a store: leadership, a survey, and the promotion of what is due."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from dutiful.core.job import Lapsed
from dutiful.core.transitions import State
from dutiful.duties import Process, Promotion, WorkerRecord
from dutiful.store import Store
from dutiful.testing.store_suite.builders import (
    ADA,
    BOB,
    EXPIRED,
    KIND,
    LEASE,
    T0,
    at,
    claim,
    claim_one,
    enqueue,
    enqueue_one,
    new_job,
    start_one,
    state,
    states,
)

TTL = timedelta(seconds=10)


async def beat(
    store: Store,
    worker_id: UUID,
    *,
    ttl: timedelta = TTL,
    now: datetime | None = None,
    host: str = "host",
    pid: int = 42,
    jobs: Sequence[str] = (),
) -> None:
    worker = WorkerRecord(
        id=worker_id, name="ada-1", host=host, pid=pid, started_at=T0, seen_at=now or T0,
        lanes={"fast": {"slots": 3, "queues": ["fast"], "busy": 1}}, kinds=["greet", "part"],
    )  # fmt: skip
    if jobs:
        worker.lanes["fast"]["jobs"] = list(jobs)
    await store.beat(worker, ttl, now=now)


class DutySuite:
    one_leader = True  # False for a store that elects a process, so that two workers of one process both lead
    sees_processes = False  # True for a store whose workers are all on this host

    async def test_due_jobs_become_ready_in_order_of_their_times(self, store: Store) -> None:
        jobs = [new_job(run_at=at(n)) for n in (30, 10, 20, 61)]
        await enqueue(store, *jobs)

        promoted = await store.promote(10, now=at(60))

        assert promoted == Promotion(3, frozenset({("default", 100)}), next_run_at=at(61))
        assert [c.job_id for c in await claim(store, now=at(60))] == [jobs[1].id, jobs[2].id, jobs[0].id]
        assert await state(store, jobs[3].id) is State.SCHEDULED
        assert await store.check_places() == []

    async def test_a_job_is_due_at_its_time_and_not_before(self, store: Store) -> None:
        job_id = await enqueue_one(store, run_at=at(60))

        assert await store.promote(10, now=at(59)) == Promotion(0, next_run_at=at(60))
        assert (await store.promote(10, now=at(60))).moved == 1
        assert await state(store, job_id) is State.READY

    async def test_a_promotion_tells_every_line_that_got_jobs(self, store: Store) -> None:
        await enqueue(
            store, new_job(run_at=at(1)), new_job(queue="fast", priority=5, run_at=at(1)),
            new_job(queue="fast", priority=5, run_at=at(2)), new_job(queue="slow", run_at=at(60)),
        )  # fmt: skip

        assert (await store.promote(10, now=at(2))).lines == {("default", 100), ("fast", 5)}

    async def test_a_promotion_moves_no_more_than_it_was_asked_to(self, store: Store) -> None:
        jobs = [new_job(run_at=at(n)) for n in range(1, 6)]
        await enqueue(store, *reversed(jobs))

        promoted = await store.promote(2, now=at(60))

        assert (promoted.moved, promoted.next_run_at) == (2, at(3))
        assert await states(store, [job.id for job in jobs]) == [State.READY] * 2 + [State.SCHEDULED] * 3

    async def test_nothing_to_promote_is_no_move(self, store: Store) -> None:
        assert await store.promote(10, now=T0) == Promotion(0)

    async def test_the_first_to_ask_leads(self, store: Store) -> None:
        survey = await store.survey(ADA, TTL, now=T0)

        assert (survey.leading, survey.now) == (True, T0)
        assert (await store.survey(ADA, TTL, now=at(5))).leading

    async def test_one_leads_at_a_time(self, store: Store) -> None:
        self._needs_one_leader()
        await store.survey(ADA, TTL, now=T0)

        assert not (await store.survey(BOB, TTL, now=at(9))).leading
        assert (await store.survey(ADA, TTL, now=at(9))).leading
        assert not (await store.survey(BOB, TTL, now=at(18))).leading

    async def test_a_leader_that_is_not_heard_of_is_succeeded(self, store: Store) -> None:
        self._needs_one_leader()
        await store.survey(ADA, TTL, now=T0)

        assert (await store.survey(BOB, TTL, now=at(11))).leading
        assert not (await store.survey(ADA, TTL, now=at(12))).leading

    async def test_a_leader_that_resigns_is_succeeded_at_once(self, store: Store) -> None:
        self._needs_one_leader()
        await store.survey(ADA, TTL, now=T0)

        await store.resign(ADA)

        assert (await store.survey(BOB, TTL, now=at(1))).leading

    async def test_only_the_leader_can_resign(self, store: Store) -> None:
        self._needs_one_leader()
        await store.survey(ADA, TTL, now=T0)

        await store.resign(BOB)

        assert not (await store.survey(BOB, TTL, now=at(1))).leading

    async def test_a_survey_of_an_empty_store_finds_nothing_to_do(self, store: Store) -> None:
        survey = await store.survey(ADA, TTL, now=T0)

        assert (survey.next_run_at, survey.next_fire_at, survey.lapsed, survey.blocked) == (None, None, False, False)

    async def test_a_survey_tells_when_the_next_job_is_due(self, store: Store) -> None:
        await enqueue(store, new_job(run_at=at(60)), new_job(run_at=at(30)))

        assert (await store.survey(ADA, TTL, now=T0)).next_run_at == at(30)

    async def test_a_survey_tells_of_lapsed_claims(self, store: Store) -> None:
        await start_one(store)

        assert not (await store.survey(ADA, TTL, now=at(1))).lapsed
        assert (await store.survey(ADA, TTL, now=at(EXPIRED))).lapsed

    async def test_a_survey_tells_of_blocked_jobs(self, store: Store) -> None:
        need = await enqueue_one(store)
        await enqueue_one(store, depends_on=(need,))

        assert (await store.survey(ADA, TTL, now=at(1))).blocked

    async def test_a_worker_is_alive_while_it_beats(self, store: Store) -> None:
        await beat(store, ADA, ttl=timedelta(hours=1))

        (worker,) = await store.workers()

        assert (worker.id, worker.name, worker.host, worker.pid) == (ADA, "ada-1", "host", 42)
        assert worker.alive
        assert worker.lanes == {"fast": {"slots": 3, "queues": ["fast"], "busy": 1}}
        assert worker.kinds == ["greet", "part"]

    async def test_a_worker_that_stopped_beating_is_not_alive(self, store: Store) -> None:
        await beat(store, ADA, now=T0)

        assert [worker.alive for worker in await store.workers()] == [False]
        assert (await store.stats(LEASE, now=at(9))).workers == 1
        assert (await store.stats(LEASE, now=at(11))).workers == 0
        await beat(store, ADA, now=at(20))
        assert (await store.stats(LEASE, now=at(29))).workers == 1

    async def test_a_worker_that_runs_jobs_says_so_at_each_beat(self, store: Store) -> None:
        for second in (0, 10, 20):
            await beat(store, ADA, host=socket.gethostname(), pid=os.getpid(), jobs=["one"], now=at(second))
            assert [worker.seen_at for worker in await store.workers()] == [at(second)]

    async def test_a_worker_that_rests_says_now_and_then_that_it_is_there(self, store: Store) -> None:
        for second in range(0, 130, 10):
            await beat(store, ADA, host=socket.gethostname(), pid=os.getpid(), now=at(second))
            (worker,) = await store.workers()
            assert at(second) - worker.seen_at < timedelta(minutes=1)

    async def test_what_becomes_of_a_workers_process_is_seen_on_its_host(self, store: Store) -> None:
        process = await asyncio.create_subprocess_exec("sleep", "60")
        await beat(store, ADA, host=socket.gethostname(), pid=process.pid)
        await beat(store, BOB, host="far-away", pid=process.pid)

        async def seen(expected: Process) -> None:
            async with asyncio.timeout(60):
                while True:  # a signal takes a moment
                    found = {worker.id: worker.process for worker in await store.workers()}
                    assert found[BOB] is Process.UNSEEN
                    if found[ADA] is expected:
                        return

        try:
            await seen(Process.RUNS)
            if sys.platform == "linux":  # elsewhere one cannot look
                process.send_signal(signal.SIGSTOP)
                await seen(Process.STOPPED)
        finally:
            process.kill()
        await process.wait()
        await seen(Process.ENDED)
        assert not any(worker.alive for worker in await store.workers() if worker.id == ADA), "whatever its beat said"

    async def test_a_worker_that_left_is_forgotten(self, store: Store) -> None:
        await beat(store, ADA, now=T0)
        await beat(store, BOB, now=T0)

        await store.leave(ADA)

        assert [worker.id for worker in await store.workers()] == [BOB]

    async def test_the_claims_of_a_process_that_died_are_orphans(self, store: Store) -> None:
        if not self.sees_processes:
            pytest.skip("this store cannot tell whether a process has died")
        process = await asyncio.create_subprocess_exec("sleep", "60")
        await beat(store, ADA, host=socket.gethostname(), pid=os.getpid())
        await beat(store, BOB, host=socket.gethostname(), pid=process.pid)
        await start_one(store)
        await enqueue_one(store)
        held = await claim_one(store, worker_id=BOB)
        assert await store.orphans() == []

        process.kill()
        await process.wait()

        assert await store.orphans() == [Lapsed(held.job_id, held.claim_id, 1, 0, KIND, BOB, cancel_requested=False)]

    async def test_the_claims_of_a_worker_that_is_not_known_to_be_dead_are_no_orphans(self, store: Store) -> None:
        await beat(store, ADA, ttl=timedelta(hours=1), host="far-away", pid=42)
        await start_one(store)

        assert await store.orphans() == []

    def _needs_one_leader(self) -> None:
        if not self.one_leader:
            pytest.skip("this store elects a process, not a worker")
