"""Handlers on the loop, in threads and in processes: what they answer, and how they are stopped."""

import asyncio
import contextvars
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import process_jobs
import pytest
from running_workers import EVERYWHERE, eventually, final, working

from dutiful import Dutiful, JobFailed, JobRecord, State

everywhere = pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
modes = pytest.mark.parametrize("mode", process_jobs.MODES)
WHERE = {"loop": "on loop", "thread": "in thread", "process": "in process"}


@pytest.fixture
async def moded(app: Dutiful) -> AsyncIterator[Dutiful]:
    """The app, with the kinds of process_jobs and one process for them."""
    app.configure(cpu_processes=1)
    app.kinds.update(process_jobs.app.kinds)
    yield app


async def attempted(app: Dutiful, mode: str, what: str) -> tuple[JobRecord, list[str]]:
    """The job after its first attempt, and what its attempts before the final one came to.

    On a busy machine the worker gives back some that wait for its only process.
    """
    client = await app.client()
    job = await app.enqueue(mode, {"what": what})

    async def settled() -> JobRecord | None:
        record = await app.find(job.id)
        return record if record and record.state not in (State.READY, State.RUNNING) else None

    record: JobRecord = await eventually(settled)
    outcomes = [attempt.outcome for attempt in await client.store.queries.attempts(job.id)]
    return record, [outcome for outcome in outcomes if outcome != "released"]


async def all_attempted(app: Dutiful, mode: str, *whats: str) -> list[tuple[JobRecord, list[str]]]:
    return await asyncio.gather(*(attempted(app, mode, what) for what in whats))


def wait_of(record: JobRecord) -> timedelta:
    """Until it is due, in whole minutes."""
    assert record.run_at is not None
    return timedelta(minutes=-((datetime.now(UTC) - record.run_at) // timedelta(minutes=1)))


def first_error(record: JobRecord) -> tuple[str, str]:
    assert record.errors is not None
    return record.errors[0]["type"], record.errors[0]["message"]


async def test_each_mode_gives_results_and_does_what_a_handler_asks_for(moded: Dutiful) -> None:
    asks = ["hello there", "raise snooze", "return snooze", "raise cancel", "return cancel", "raise retry after"]
    async with working(moded):
        for mode in process_jobs.MODES:
            hello, *asked, later, (failed, _) = await all_attempted(moded, mode, *asks, "raise fail")
            assert (hello[0].state, hello[0].result, hello[0].attempt) == (State.COMPLETED, "hello there", 1)
            for record, tried in asked[:2]:
                assert (record.state, record.attempt, tried) == (State.SCHEDULED, 0, ["snoozed"])
                assert wait_of(record) == timedelta(hours=2)
            for record, _ in asked[2:]:
                assert record.state is State.CANCELLED and first_error(record) == ("Cancelled", "not wanted")
            assert (later[0].state, later[0].attempt, later[1]) == (State.SCHEDULED, 1, ["failed"])
            assert wait_of(later[0]) == timedelta(hours=3)
            assert (failed.state, failed.attempt) == (State.FAILED, 1)
            assert first_error(failed) == ("Fail", "never works")


@sqlite
async def test_a_control_that_lacks_its_parts_is_a_failed_attempt(moded: Dutiful) -> None:
    whats = ["raise limited", "return unwilling", "raise dozing"]
    async with working(moded) as worker:
        for mode in process_jobs.MODES:
            attempts = await all_attempted(moded, mode, *whats)
            for what, (record, tried) in zip(whats, attempts, strict=True):
                assert (record.state, record.attempt, tried) == (State.SCHEDULED, 1, ["failed"]), (mode, what)
                assert wait_of(record) == timedelta(hours=1)
        assert sum(lane.busy for lane in worker.lanes) == 0  # and the worker lives
    (first, *_) = await (await moded.client()).store.queries.attempts(attempts[0][0].id)
    assert first.error is not None and first.error["type"] == "Limited"


@sqlite
async def test_retry_policies_know_the_classes_of_errors_in_each_mode(moded: Dutiful) -> None:
    async with working(moded):
        for mode in process_jobs.MODES:
            (error, tried), (tired, _), (broken, none) = await all_attempted(
                moded, mode, "raise error", "raise tired", "raise broken"
            )
            assert (error.state, tried, wait_of(error)) == (State.SCHEDULED, ["failed"], timedelta(hours=1))
            assert (tired.state, wait_of(tired)) == (State.SCHEDULED, timedelta(days=1))
            assert (broken.state, none, broken.attempt) == (State.FAILED, [], 1)
            assert first_error(broken) == ("Broken", "for good") and broken.errors is not None
            assert "behave" in broken.errors[0]["traceback"]


@everywhere
async def test_running_jobs_are_cancelled_wherever_they_run(moded: Dutiful, tmp_path: Path) -> None:
    async with working(moded):
        for mode in process_jobs.MODES:
            await moded.enqueue(mode, {"what": "be warm"})
        jobs = [await moded.enqueue(f"hang {where}", {"pid_file": str(tmp_path / where)}) for where in WHERE.values()]

        async def all_running() -> bool:
            return all((tmp_path / where).exists() and (tmp_path / where).read_text() for where in WHERE.values())

        await eventually(all_running)
        assert [await job.cancel("enough") for job in jobs] == [True, True, True]
        records = [await final(moded, job) for job in jobs]
        assert [(record.state, record.attempt) for record in records] == [(State.CANCELLED, 1)] * 3
        await eventually(lambda: gone(int((tmp_path / "in process").read_text())))
        after = await all_attempted(moded, "process", "next please")
        assert after[0][0].result == "next please"


@modes
@sqlite
async def test_a_job_past_its_timeout_is_stopped_wherever_it_runs(moded: Dutiful, mode: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    async with working(moded):
        job = await moded.enqueue(f"late {WHERE[mode]}", {"pid_file": str(file)})
        with pytest.raises(JobFailed, match="longer than its timeout of 100ms"):
            await job.result("20s")
        record = await final(moded, job)
        assert record.errors is not None and record.errors[0]["type"] == "TimeoutExceeded"
        if mode == "process":
            await eventually(lambda: gone(int(file.read_text())))


@sqlite
async def test_waiting_for_a_free_process_is_not_held_against_a_job(moded: Dutiful) -> None:
    async with working(moded):
        jobs = [await moded.enqueue("takes a moment") for _ in range(4)]
        pids = {await job.result("20s") for job in jobs}
    assert len(pids) == 1 and os.getpid() not in pids


@sqlite
async def test_a_process_that_dies_fails_its_job_only(moded: Dutiful) -> None:
    async with working(moded):
        record, tried = await attempted(moded, "process", "die")
        assert (record.state, tried) == (State.SCHEDULED, ["failed"])
        (attempt,) = await (await moded.client()).store.queries.attempts(record.id)
        assert attempt.error is not None and attempt.error["type"] == "ProcessDied"
        assert "exit code 3" in attempt.error["message"]
        record, _ = await attempted(moded, "process", "hello again")
        assert record.state is State.COMPLETED


@sqlite
async def test_a_process_outlives_every_thread_of_the_event_loop(moded: Dutiful, tmp_path: Path) -> None:
    file, gate = tmp_path / "file", tmp_path / "gate"
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor()
    async with working(moded):
        loop.set_default_executor(threads)
        job = await moded.enqueue("waits in process", {"pid_file": str(file), "gate": str(gate)})

        async def begun() -> bool:
            return file.exists() and bool(file.read_text())

        await eventually(begun)
        loop.set_default_executor(ThreadPoolExecutor())
        threads.shutdown()
        gate.touch()
        assert await job.result("20s") == int(file.read_text())


async def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""

    def look() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    return await asyncio.to_thread(look)


# --- what one job does must not be seen by the next


@sqlite
async def test_context_variables_do_not_leak_from_job_to_job(app: Dutiful) -> None:
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="clean")
    app.configure(lanes="one=1:*")

    @app.job
    async def on_loop() -> str:
        before = mark.get()
        mark.set("dirty")
        await asyncio.sleep(0)
        return f"{before}, then {mark.get()}"

    @app.job
    def in_thread() -> str:
        before = mark.get()
        mark.set("dirty")
        return f"{before}, then {mark.get()}"

    async with working(app):
        for kind in (on_loop, in_thread):
            jobs = await kind.enqueue_many([{}] * 3)
            assert {await job.result("20s") for job in jobs} == {"clean, then dirty"}
