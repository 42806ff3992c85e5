"""Channels on a real database: what is run, with which payloads, and what is recorded, by a login without tables."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pytest
from channel_world import HANDLERS, ChannelWorld, channel_world, serving

from dutiful.channels import ChannelCall, Channels
from dutiful.channels.sql_worker import SqlWorkerConfig
from dutiful.factory import make_sql_worker
from dutiful.settings import Settings
from faults import until


@pytest.fixture(scope="module", params=["18", "16"])
def made(request: pytest.FixtureRequest) -> Iterator[ChannelWorld]:
    with channel_world(request.getfixturevalue(f"postgres{request.param}")) as world:
        yield world


@pytest.fixture
def world(made: ChannelWorld) -> ChannelWorld:
    made.reset()
    return made


class PushRequest(msgspec.Struct):
    n: int
    text: str = "hello"


@pytest.mark.req("S2", "S21", "S23", "S25", "S28", "S35", "S37", "S38", "S62", "S63")
async def test_a_channel_of_ones_own_runs_its_handlers_around_its_provider(world: ChannelWorld) -> None:
    channels, calls = Channels(), []

    @channels.channel("push")
    async def push(request: PushRequest, call: ChannelCall) -> dict[str, Any]:
        calls.append((request, call))
        return {"receipt": f"r{request.n}"}

    async with serving(world, channels):
        job_id = world.send("push", 7, note="any more fields")
        (row,) = await world.ended(job_id)

    assert calls == [(PushRequest(7), ChannelCall(job_id, str(job_id), 1))]
    assert (row["state"], row["result"], row["errors"]) == (
        "completed",
        {"status": "succeeded", "accepted": True},
        None,
    )
    names = dict(zip(("before_handler", "success_handler", "error_handler"), HANDLERS, strict=True))
    original = {"task_type": "push", "attempt_id": 7, "note": "any more fields", **names}
    assert world.seen() == ["before", "success"]
    assert world.payloads("before") == [original]
    assert world.payloads("success") == [{"original_payload": original, "worker_payload": {"receipt": "r7"}}]
    assert world.facts() == ([7], [])


@pytest.mark.req("S21", "S22", "S25", "S28", "S31", "S61")
async def test_a_function_that_a_payload_names_is_run_with_the_whole_payload(world: ChannelWorld) -> None:
    async with serving(world):
        job_id = world.call("comms.answer", answer={"status": "succeeded"}, order={"id": 42})
        (row,) = await world.ended(job_id)

    assert (row["state"], row["result"], row["errors"]) == ("completed", {"status": "succeeded"}, None)
    assert world.payloads("answer") == [
        {
            "task_type": "db_function",
            "db_function": "comms.answer",
            "answer": {"status": "succeeded"},
            "order": {"id": 42},
        }
    ]


@pytest.mark.req("S11", "S26")
async def test_a_handler_makes_new_attempts_as_new_jobs_which_the_worker_cannot(world: ChannelWorld) -> None:
    """The error handler records the failure and enqueues the next attempt, up to the third."""
    retry = world.define(
        "retry",
        "perform comms.record_failure(p);"
        " if (p -> 'original_payload' ->> 'attempt_id')::int < 3 then"
        f" perform {world.schema}.enqueue('push', p -> 'original_payload'"
        "   || jsonb_build_object('attempt_id', (p -> 'original_payload' ->> 'attempt_id')::int + 1)); end if;"
        ' return \'{"status": "succeeded"}\';',
    )
    channels, calls = Channels(), []

    @channels.channel("push")
    def push(request: PushRequest, call: ChannelCall) -> None:
        calls.append((request.n, call.attempt))
        keys.add(call.idempotency_key)
        raise RuntimeError("refused")

    keys: set[str] = set()
    async with serving(world, channels):
        world.send("push", 1, error_handler=retry)
        await until(lambda: _returned(len(world.facts()[1]) == 3), "three attempts have failed")

        async def all_ended() -> bool:
            return {row["state"] for row in world.run("select state from {s}.jobs")} == {"completed_with_errors"}

        await until(all_ended, "all have ended")

    assert calls == [(1, 1), (2, 1), (3, 1)] and len(keys) == 3
    assert world.run("select count(*) as n from {s}.attempt") == [{"n": 0}]
    with psycopg.connect(world.url) as login, pytest.raises(psycopg.errors.InsufficientPrivilege):
        login.execute(f"select {world.schema}.enqueue('push')".encode())


async def _returned(value: bool) -> bool:
    return value


@pytest.mark.req("S28", "S30")
async def test_a_payload_reaches_its_handlers_as_it_was_stored(world: ChannelWorld) -> None:
    """Numbers that no Python type has, and names of the domain, pass through the worker unread."""
    names = dict(zip(("before_handler", "success_handler", "error_handler"), HANDLERS, strict=True))
    exact = (
        '{"attempt_id": 12345678901, "amount": 0.1000000000000000000000000001, "big": 1e300, "deep": [[{"ü": null}]]}'
    )
    channels = Channels()
    channels.channel("push")(lambda request: None)
    async with serving(world, channels):
        (row,) = world.run(
            "select {s}.enqueue('push', %s::jsonb || %s::jsonb) as id", exact, msgspec.json.encode(names).decode()
        )
        await world.ended(row["id"])
    compare = (
        "select bool_and(payload @> p and p <@ payload) as same, count(*) as n from (select case handler when 'before'"
        " then payload else payload -> 'original_payload' end as payload from comms.seen) s, (select %s::jsonb as p) e"
    )
    assert world.run(compare, exact) == [{"same": True, "n": 2}]


@pytest.mark.req("S33", "S39", "S41")
async def test_facts_are_recorded_once_however_often_their_handlers_run(world: ChannelWorld) -> None:
    channels, requests = Channels(), []

    @channels.channel("push")
    def push(request: dict[str, Any]) -> None:
        requests.append(request)
        if request.get("fail"):
            raise RuntimeError("refused")

    async with serving(world, channels):
        jobs = [world.send("push", 1, answer={"status": "succeeded"}) for _ in range(2)]
        jobs += [world.send("push", 2, request={"fail": True}) for _ in range(2)]
        rows = await world.ended(*jobs)

    assert requests.count({}) == 2  # the payload of an envelope is optional
    assert world.facts() == ([1], [2]) and world.seen().count("error") == 2
    assert [len(row["errors"] or []) for row in rows] == [0, 0, 1, 1]  # no handler has raised


async def test_sql_workers_need_no_other_process_for_scheduled_jobs_and_dead_workers(world: ChannelWorld) -> None:
    async with serving(world, lease=timedelta(seconds=1), poll=timedelta(milliseconds=50)):
        later = world.enqueue(
            "db_function",
            {"db_function": "comms.answer", "answer": {"status": "succeeded"}},
            run_at=(datetime.now(UTC) + timedelta(seconds=1)).isoformat(),
        )
        (scheduled,) = await world.ended(later)
    # A session takes a job, and is never heard of again.
    taken = world.call("comms.answer", answer={"status": "succeeded"})
    claimed = world.run("select job_id from {s}.dequeue(array['db_function'], p_lease => interval '1 millisecond')")
    async with serving(world, lease=timedelta(seconds=1), poll=timedelta(milliseconds=50)):
        (rescued,) = await world.ended(taken)

    assert claimed == [{"job_id": taken}]
    assert {row["state"] for row in (scheduled, rescued)} == {"completed"}
    assert world.run("select outcome from {s}.attempt") == [{"outcome": "lost"}]


async def test_a_notification_wakes_a_worker_that_polls_rarely_and_only_its_queues_are_served(
    world: ChannelWorld,
) -> None:
    async with serving(world, poll=timedelta(hours=1), queues=["mail"]):
        first = world.call("comms.answer", answer={"status": "succeeded"})  # of the queue default
        statement = "select {s}.enqueue('db_function', %s::jsonb, p_queue => 'mail') as id"
        payload = '{"db_function": "comms.answer", "answer": {"status": "succeeded"}}'
        for _ in range(3):
            (row,) = world.run(statement, payload)
            await world.ended(row["id"])
    assert world.job(first)["state"] == "ready"


async def test_a_worker_behind_a_pooler_polls_and_renews(pgbouncer: str, pg18_url: str) -> None:
    """In transaction mode: nothing that it does may depend on its session."""
    config = SqlWorkerConfig(uuid4(), 4, timedelta(seconds=30), timedelta(seconds=10), timedelta(milliseconds=50))
    with psycopg.connect(pg18_url, autocommit=True) as owner:
        owner.execute(
            "create schema pooled; create function pooled.answer(p jsonb) returns jsonb language sql as"
            " $$ select jsonb_build_object('status', current_setting('statement_timeout')) $$;"
            " revoke execute on function pooled.answer from public"
        )
        try:
            worker = make_sql_worker(Settings(database_url=pgbouncer), Channels(), config)
            running = asyncio.create_task(worker.run())
            for _ in range(10):
                owner.execute("select dutiful.enqueue('db_function', '{\"db_function\": \"pooled.answer\"}')")

            async def ended() -> bool:
                rows = owner.execute("select result ->> 'status' from dutiful.finished").fetchall()
                return rows == [("24s",)] * 10

            await until(ended, "all have ended, each within 80 % of its lease")
            worker.stop()
            await running
        finally:
            owner.execute("drop schema pooled cascade")
