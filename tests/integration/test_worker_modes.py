"""Handlers on the loop, in threads and in processes: what they answer, and how they are stopped."""

import asyncio
import contextvars
import os
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

import process_jobs
from dutiful import Dutiful, JobFailed, JobRecord, Retry, State
from working import EVERYWHERE, eventually, final, working

everywhere = pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)
modes = pytest.mark.parametrize("mode", process_jobs.MODES)
WHERE = {"loop": "on loop", "thread": "in thread", "process": "in process"}


@pytest.fixture
async def told(app: Dutiful) -> AsyncIterator[Dutiful]:
    """The app, with the kinds of process_jobs and one process for them."""
    app.configure(cpu_processes=1)
    app.kinds.update(process_jobs.app.kinds)
    yield app


async def outcome(app: Dutiful, mode: str, what: str) -> tuple[JobRecord, list[str]]:
    """The job after its first attempt, and what its earlier attempts came to."""
    client = await app.client()
    job = await app.enqueue(mode, {"what": what})

    async def settled() -> JobRecord | None:
        record = await app.find(job.id)
        return record if record and record.state not in (State.READY, State.RUNNING) else None

    record: JobRecord = await eventually(settled)
    return record, [attempt.outcome for attempt in await client.store.attempts(job.id)]


def wait_of(record: JobRecord) -> timedelta:
    """From now, rounded up to whole minutes."""
    assert record.run_at is not None
    from datetime import UTC, datetime

    seconds = (record.run_at - datetime.now(UTC)).total_seconds()
    return timedelta(minutes=-(-seconds // 60))


@everywhere
async def test_each_mode_gives_results_and_heeds_what_a_handler_asks_for(told: Dutiful) -> None:
    async with working(told):
        for mode in process_jobs.MODES:
            record, _ = await outcome(told, mode, "hello there")
            assert (record.state, record.result, record.attempt) == (State.COMPLETED, "hello there", 1)
            for way in ("raise", "return"):
                record, tried = await outcome(told, mode, f"{way} snooze")
                assert (record.state, record.attempt, tried) == (State.SCHEDULED, 0, ["snoozed"])
                assert wait_of(record) == timedelta(hours=2)
                record, _ = await outcome(told, mode, f"{way} cancel")
                assert record.state is State.CANCELLED and record.errors is not None
                assert record.errors[0]["message"] == "not wanted"
            record, tried = await outcome(told, mode, "raise retry after")
            assert (record.state, record.attempt, tried) == (State.SCHEDULED, 1, ["failed"])
            assert wait_of(record) == timedelta(hours=3)
            record, _ = await outcome(told, mode, "raise fail")
            assert record.state is State.FAILED and record.attempt == 1 and record.errors is not None
            assert (record.errors[0]["type"], record.errors[0]["message"]) == ("Fail", "never works")


async def test_retry_policies_know_the_classes_of_errors_in_each_mode(told: Dutiful) -> None:
    async with working(told):
        for mode in process_jobs.MODES:
            record, tried = await outcome(told, mode, "raise error")
            assert (record.state, tried, wait_of(record)) == (State.SCHEDULED, ["failed"], timedelta(hours=1))
            record, _ = await outcome(told, mode, "raise tired")
            assert (record.state, wait_of(record)) == (State.SCHEDULED, timedelta(days=1))
            record, tried = await outcome(told, mode, "raise broken")
            assert (record.state, tried, record.attempt) == (State.FAILED, [], 1) and record.errors is not None
            assert record.errors[0]["type"] == "Broken" and "behave" in record.errors[0]["traceback"]


@modes
@everywhere
async def test_a_running_job_is_cancelled_wherever_it_runs(told: Dutiful, mode: str, tmp_path: Path) -> None:
    file = tmp_path / "told"

    async def running() -> str:
        return file.read_text() if file.exists() else ""

    async with working(told):
        job = await told.enqueue(f"hang {WHERE[mode]}", {"told": str(file)})
        who = await eventually(running)
        assert await job.cancel("enough") is True
        record = await final(told, job)
        assert record.state is State.CANCELLED and record.attempt == 1
        if mode == "process":
            await eventually(lambda: gone(int(who)))
        assert await (await told.enqueue("loop", {"what": "next please"})).result("20s") == "next please"


@modes
async def test_a_job_past_its_timeout_is_stopped_wherever_it_runs(told: Dutiful, mode: str, tmp_path: Path) -> None:
    file = tmp_path / "told"
    async with working(told):
        job = await told.enqueue(f"late {WHERE[mode]}", {"told": str(file)})
        with pytest.raises(JobFailed, match=r"longer than its timeout of 0:00:00\.1"):
            await job.result("20s")
        record = await final(told, job)
        assert record.errors is not None and record.errors[0]["type"] == "TimeoutExceeded"
        if mode == "process":
            await eventually(lambda: gone(int(file.read_text())))


async def test_waiting_for_a_free_process_is_not_held_against_a_job(told: Dutiful) -> None:
    async with working(told):
        jobs = [await told.enqueue("takes a moment") for _ in range(3)]
        pids = {await job.result("20s") for job in jobs}
    assert len(pids) == 1 and os.getpid() not in pids


async def test_a_process_that_dies_fails_its_job_only(told: Dutiful) -> None:
    async with working(told):
        record, tried = await outcome(told, "process", "die")
        assert (record.state, tried) == (State.SCHEDULED, ["failed"])
        (attempt,) = await (await told.client()).store.attempts(record.id)
        assert attempt.error is not None and attempt.error["type"] == "ProcessDied"
        assert "exit code 3" in attempt.error["message"]
        record, _ = await outcome(told, "process", "hello again")
        assert record.state is State.COMPLETED


async def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


# --- what one job does must not be seen by the next


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
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


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_job_that_ends_as_its_time_runs_out_leaves_its_thread_sound(app: Dutiful) -> None:
    app.configure(lanes="one=1:*")

    @app.job(timeout="100ms", retry=Retry(max_attempts=1))
    def near() -> None:
        time.sleep(0.1)

    @app.job
    def innocent() -> str:
        total = sum(n for n in range(2_000))
        return f"{total}"

    async with working(app):
        for _ in range(10):
            risky = await near.enqueue()
            next_one = await innocent.enqueue()
            assert (await final(app, risky)).state in (State.COMPLETED, State.FAILED)
            assert await next_one.result("20s") == "1999000"
