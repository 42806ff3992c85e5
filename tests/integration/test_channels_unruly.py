"""Providers that hang, block, raise and outlive their lease, and jobs that are cancelled: the worker goes on."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

import asyncpg
import psycopg
import pytest
from channel_world import ChannelWorld, channel_world, serving

from dutiful.channels import ChannelCall, Channels, sql_worker
from faults import until

LOCK = 4711


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[ChannelWorld]:
    version = getattr(request, "param", "18")
    with channel_world(request.getfixturevalue(f"postgres{version}")) as world:
        waits = f"perform pg_advisory_xact_lock({LOCK});"
        world.define("waits", f'{waits} return comms.answer(p || \'{{"answer": {{"status": "succeeded"}}}}\');')
        yield world


@pytest.fixture
def world(made: ChannelWorld) -> ChannelWorld:
    made.reset()
    return made


@pytest.fixture
def quick_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a lease of 30 s, so that a function may wait for a lock meanwhile."""
    monkeypatch.setattr(sql_worker, "LONGEST_RENEWAL", 0.1)


@asynccontextmanager
async def locked(world: ChannelWorld) -> AsyncIterator[None]:
    """Holds the lock for which comms.waits waits."""
    connection = psycopg.connect(world.logins.superuser_url, autocommit=True)
    connection.execute("select pg_advisory_lock(%s)", [LOCK])
    try:
        yield
    finally:
        connection.close()


async def waiting(world: ChannelWorld) -> None:
    """Returns when a session of the worker waits for the lock."""
    query = "select 1 from pg_locks where locktype = 'advisory' and not granted"

    async def look() -> bool:
        return bool(world.run(query))

    await until(look, "a function waits")


class Gate:
    """A provider that waits until it is opened, and says what it was called with."""

    def __init__(self) -> None:
        self.calls: list[ChannelCall] = []
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, request: dict[str, Any], call: ChannelCall) -> str:
        self.calls.append(call)
        self.entered.release()
        assert self.open.wait(60)
        return "done"

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=60)


def outcomes(world: ChannelWorld, job_id: UUID) -> list[str]:
    rows = world.run("select outcome from {s}.attempt where job_id = %s order by id", job_id)
    return [row["outcome"] for row in rows]


def cancel(world: ChannelWorld, job_id: UUID) -> None:
    assert world.run("select requested from {s}.cancel(%s, 'not needed', null)", job_id) == [{"requested": True}]


# --- leases


@pytest.mark.req("S29", "S5")
@pytest.mark.parametrize("made", ["18", "16"], indirect=True)
async def test_a_claim_is_committed_before_its_function_runs_and_renewed_meanwhile(
    world: ChannelWorld, quick_renewals: None
) -> None:
    async with serving(world), locked(world):
        job_id = world.call("comms.waits")
        await waiting(world)
        first = world.job(job_id)

        async def renewed() -> bool:
            return bool(world.job(job_id)["expires_at"] > first["expires_at"])

        await until(renewed, "the lease is renewed")
    assert first["state"] == "running"
    assert world.job(job_id)["state"] == "completed"


async def test_a_lease_that_is_locked_keeps_no_other_from_being_renewed(
    world: ChannelWorld, quick_renewals: None, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(world.logins.superuser_url) as holder:
        async with serving(world), locked(world):
            jobs = [world.call("comms.waits") for _ in range(2)]

            async def both_run() -> bool:
                return {world.job(job_id)["state"] for job_id in jobs} == {"running"}

            await until(both_run, "both run")
            holder.execute(f"select 1 from {world.schema}.lease where job_id = %s for update", [jobs[0]])
            before = [world.job(job_id)["expires_at"] for job_id in jobs]

            async def renewed() -> bool:
                return bool(world.job(jobs[1])["expires_at"] > before[1]) and "has locked its lease" in caplog.text

            await until(renewed, "the other lease is renewed")
            assert world.job(jobs[0])["expires_at"] == before[0]
            holder.rollback()
        assert [row["state"] for row in await world.ended(*jobs)] == ["completed", "completed"]


@pytest.mark.req("S38", "S39", "S80", "S81")
async def test_a_lease_lost_during_the_call_keeps_its_success_from_being_recorded(world: ChannelWorld) -> None:
    channels, gate = Channels(), Gate()
    channels.channel("push")(gate)
    # One slot, so that this worker takes the job again only when the first call has ended.
    async with serving(world, channels, concurrency=1):
        job_id = world.send("push", 1)
        await gate.reached()
        taken = "select rescued from {s}.maintain_jobs(array['push'], p_now => now() + interval '1 hour')"
        assert world.run(taken) == [{"rescued": 1}]
        before = world.seen()
        gate.open.set()
        (row,) = await world.ended(job_id)

    assert before == ["before"]
    assert world.seen() == ["before", "before", "success"] and world.facts() == ([1], [])
    assert [(call.idempotency_key, call.attempt) for call in gate.calls] == [(str(job_id), 1), (str(job_id), 2)]
    assert row["state"] == "completed"
    assert outcomes(world, job_id) == ["lost", "refused"]


async def test_a_function_whose_claim_is_lost_leaves_nothing(world: ChannelWorld) -> None:
    async with serving(world, concurrency=1):
        async with locked(world):
            job_id = world.call("comms.waits")
            await waiting(world)
            world.run("select * from {s}.maintain_jobs(array['db_function'], p_now => now() + interval '1 hour')")
        await world.ended(job_id)
    assert world.seen() == ["answer"]
    assert outcomes(world, job_id) == ["lost", "refused"]


async def test_a_dequeue_whose_reply_is_lost_claims_nothing(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would count as a death of its worker, and three of them make a dead letter of a job that never ran."""
    fetch, losses = asyncpg.Connection.fetch, 0

    async def lossy(connection: Any, statement: str, *args: Any, **options: Any) -> Any:
        nonlocal losses
        rows = await fetch(connection, statement, *args, **options)
        if ".dequeue(" in statement and rows and losses < 3:
            losses += 1
            connection.terminate()
            raise asyncpg.ConnectionDoesNotExistError("the reply is lost")
        return rows

    monkeypatch.setattr(asyncpg.Connection, "fetch", lossy)
    async with serving(world):
        job_id = world.call("comms.answer", answer={"status": "succeeded"})
        (row,) = await world.ended(job_id, within=15)  # its lease takes longer
    assert losses == 3 and (row["state"], row["attempt"]) == ("completed", 1)
    assert outcomes(world, job_id) == []


# --- cancellation


async def test_a_job_cancelled_before_its_provider_is_called_does_not_call_it(
    world: ChannelWorld, quick_renewals: None
) -> None:
    channels, gate = Channels(), Gate()
    gate.open.set()
    channels.channel("push")(gate)
    async with serving(world, channels), locked(world):
        jobs = [world.send("push", 1, before_handler="comms.waits"), world.call("comms.waits")]
        await waiting(world)
        for job_id in jobs:
            cancel(world, job_id)
        rows = await world.ended(*jobs)  # the renewal finds the request, and what waits is interrupted

    assert [row["state"] for row in rows] == ["cancelled", "cancelled"]
    assert [row["errors"][0]["message"] for row in rows] == ["not needed", "not needed"]
    assert gate.calls == []
    assert [p["error"] for p in world.payloads("error")] == ["the job was cancelled before its provider was called"]
    assert world.payloads("answer") == []


async def test_a_request_to_cancel_is_seen_between_the_before_handler_and_the_provider(world: ChannelWorld) -> None:
    """With a lease that is not renewed within the test: the worker looks once more before it calls."""
    channels, gate = Channels(), Gate()
    channels.channel("push")(gate)
    # The before handler requests it itself, which is as late as it can be.
    world.define(
        "cancels",
        f"perform {world.schema}.cancel((select job_id from {world.schema}.lease), 'late', null);"
        'return \'{"status": "succeeded"}\';',
    )
    async with serving(world, channels, lease=timedelta(hours=1)):
        job_id = world.send("push", 1, before_handler="comms.cancels")
        (row,) = await world.ended(job_id)
    assert (row["state"], gate.calls, world.facts()) == ("cancelled", [], ([], [1]))


async def test_a_call_that_has_begun_is_recorded_although_a_cancel_was_requested(
    world: ChannelWorld, quick_renewals: None
) -> None:
    channels, gate = Channels(), Gate()
    channels.channel("push")(gate)
    async with serving(world, channels):
        job_id = world.send("push", 1)
        await gate.reached()
        cancel(world, job_id)
        began = world.job(job_id)["expires_at"]

        async def renewed() -> bool:
            return bool(world.job(job_id)["expires_at"] > began)

        await until(renewed, "a renewal has seen the request")
        gate.open.set()
        (row,) = await world.ended(job_id)
    assert (row["state"], world.facts()) == ("cancelled", ([1], []))


# --- providers


@pytest.mark.req("S24", "S25", "S26", "S40")
async def test_providers_that_fail_in_any_way_are_recorded_and_the_worker_goes_on(world: ChannelWorld) -> None:
    channels, calls = Channels(), []

    def raising(error: BaseException) -> Any:
        def provider(request: dict[str, Any]) -> NoReturn:
            calls.append(request["n"])
            raise error

        async def async_provider(request: dict[str, Any]) -> NoReturn:
            calls.append(request["n"])
            raise error

        return provider, async_provider

    errors = (
        ValueError("postgresql://ada:hunter2@db refused token=abcdefgh12345678"),
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(),
        asyncio.CancelledError("of its own"),
        TimeoutError("its own timeout"),
        GeneratorExit(),
    )
    for n, error in enumerate(errors):
        plain, coroutine = raising(error)
        channels.channel(f"plain{n}")(plain)
        channels.channel(f"async{n}")(coroutine)
    names = list(channels)

    @channels.channel("well")
    async def well(request: dict[str, Any]) -> None: ...

    async with serving(world, channels):
        jobs = [world.send(name, n) for n, name in enumerate(names)]
        rows = await world.ended(*jobs)
        (last,) = await world.ended(world.send("well", 99))

    assert last["state"] == "completed" and sorted(calls) == list(range(len(names)))
    assert {row["state"] for row in rows} == {"completed_with_errors"} and {row["attempt"] for row in rows} == {1}
    reported = {p["original_payload"]["task_type"]: p["error"] for p in world.payloads("error")}
    for n, error in enumerate(errors):
        kind = "RuntimeError" if isinstance(error, StopIteration) else type(error).__name__
        assert f"plain{n}: {type(error).__name__}" in reported[f"plain{n}"]
        assert f"async{n}: {kind}" in reported[f"async{n}"]
    assert "hunter2" not in str(rows) + str(reported) and "abcdefgh12345678" not in str(rows) + str(reported)
    assert world.facts() == ([99], list(range(len(names))))


async def test_an_answer_that_is_no_json_is_a_success_without_it(world: ChannelWorld) -> None:
    channels = Channels()
    channels.channel("push")(lambda request: object())
    async with serving(world, channels):
        (row,) = await world.ended(job_id := world.send("push", 1))
    assert row["result"] == {"status": "succeeded", "accepted": True}
    assert "answer of channel push" in world.errors(job_id)[0]
    assert [p["worker_payload"] for p in world.payloads("success")] == [None]
    assert world.facts() == ([1], [])


async def test_a_provider_that_hangs_is_left_behind_after_its_timeout(
    world: ChannelWorld, caplog: pytest.LogCaptureFixture
) -> None:
    channels, gate = Channels(), Gate()
    channels.channel("thread", timeout="50ms")(gate)
    interrupted = threading.Event()

    @channels.channel("task", timeout="50ms")
    async def task(request: dict[str, Any]) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            interrupted.set()

    async with serving(world, channels, concurrency=2):
        jobs = [world.send(name, n) for n, name in enumerate(("thread", "task", "thread"))]
        rows = await world.ended(*jobs)
        # Two calls of two slots have not ended: this channel waits, and the others do not.
        held_back, other = world.send("thread", 10), world.send("task", 11)
        await world.ended(other)
        assert world.job(held_back)["state"] == "ready"
        gate.open.set()
        await world.ended(held_back)

    assert interrupted.is_set()
    assert [row["errors"][0]["type"] for row in rows] == ["ProviderTimeout"] * 3
    assert world.errors(jobs[0]) == ["the provider of thread did not answer within 50ms"]
    assert world.facts() == ([10], [0, 1, 2, 11])
    assert "none of its jobs is taken until one does" in caplog.text
    assert "accepted after its timeout" in caplog.text


async def test_a_provider_that_blocks_its_event_loop_blocks_no_function_and_no_renewal(
    world: ChannelWorld, quick_renewals: None
) -> None:
    channels, open_ = Channels(), threading.Event()

    @channels.channel("rude", timeout="100ms")
    async def rude(request: dict[str, Any]) -> None:
        while not open_.is_set():
            time.sleep(0.01)  # noqa: ASYNC251 - the fault itself

    @channels.channel("polite")
    async def polite(request: dict[str, Any]) -> str:
        return "done"

    late: list[int] = []

    @channels.channel("brief", timeout="50ms")
    async def brief(request: dict[str, Any]) -> None:
        late.append(request["n"])

    async with serving(world, channels):
        (row,) = await world.ended(world.send("rude", 1))
        (not_called,) = await world.ended(world.send("brief", 3))
        behind = world.send("polite", 2)
        answer = {"status": "succeeded"}
        (function,) = await world.ended(world.call("comms.answer", answer=answer))

        async def called() -> bool:
            return world.job(behind)["state"] == "running" and world.seen().count("before") == 3

        await until(called, "the polite one is called")
        began = world.job(behind)["expires_at"]

        async def renewed() -> bool:
            return bool(world.job(behind)["expires_at"] > began)

        await until(renewed, "its lease is renewed")
        open_.set()
        await world.ended(behind)

    assert row["errors"][0]["type"] == "ProviderTimeout" and function["state"] == "completed"
    # What was recorded as failed before it began was not called when the loop was free, before the polite one.
    assert "the provider of brief was not called" in not_called["errors"][0]["message"] and late == []
    assert world.facts() == ([2], [1, 3])
