"""Workers in SQL in the fleet: they are listed, doctor and drain know them, and they cannot pass for others."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from channel_world import ChannelWorld, channel_world, serving

from dutiful.operator.explain import FleetState
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.workers import LaneRecord, Process, WorkerRecord
from faults import until
from tenanted import opened


@pytest.fixture(scope="module", params=["18", "16"])
def made(request: pytest.FixtureRequest) -> Iterator[ChannelWorld]:
    with channel_world(request.getfixturevalue(f"postgres{request.param}")) as world:
        yield world


@pytest.fixture
def world(made: ChannelWorld) -> ChannelWorld:
    made.reset()
    made.run("delete from {s}.worker")
    made.run("delete from {s}.pause")
    return made


@pytest.fixture
async def store(world: ChannelWorld) -> AsyncIterator[Store]:
    async with opened(world.logins.url("owner"), world.schema) as found:
        yield found


async def listed(store: Store) -> WorkerRecord:
    async def look() -> bool:
        return bool(await store.workers.all())

    await until(look, "the worker is listed")
    (found,) = await store.workers.all()
    return found


async def test_a_worker_in_sql_is_listed_while_it_lives(world: ChannelWorld, store: Store) -> None:
    async with serving(world, concurrency=3, queues=["default", "slow"]):
        found = await listed(store)
    assert (found.alive, found.process, found.pid, found.in_sql) == (True, Process.RUNS, os.getpid(), True)
    assert found.kinds == ["db_function"] and found.lanes["sql"].slots == 3
    assert found.lanes["sql"].queues == ("default", "slow")
    assert await store.workers.all() == []


async def test_jobs_that_it_serves_are_not_reported_as_unserved(world: ChannelWorld, store: Store) -> None:
    async with serving(world):
        await listed(store)
        fleet = FleetState.of(await store.workers.all(), [])
    assert list(fleet.serving("default")) and fleet.leaders == ()


@pytest.mark.parametrize("since", ["now()", "date_trunc('second', now())"])
async def test_a_drain_learns_that_it_respects_a_pause(
    world: ChannelWorld, store: Store, since: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dutiful.channels.sql_worker.HEARTBEAT", 0.0)
    async with serving(world):
        await listed(store)
        world.run(f"insert into {{s}}.pause (scope, name, since) values ('queue', 'ünïque', {since})")
        (pause,) = await store.control.pauses()

        async def seen() -> bool:
            return pause.mark in (await listed(store)).lanes["sql"].pauses_seen

        await until(seen, "the heartbeat shows the pause")
    assert pause.scope is PauseScope.QUEUE


async def test_it_cannot_pass_for_a_worker_in_python_or_remove_one(world: ChannelWorld, store: Store) -> None:
    lanes = {"general": LaneRecord(slots=1, queues=("*",))}
    now = world.run("select now() as now")[0]["now"]
    python = WorkerRecord(
        id=uuid4(), name="py", host="elsewhere", pid=1, started_at=now, seen_at=now, lanes=lanes, kinds=["greet"]
    )
    await store.workers.heartbeat(python, timedelta(minutes=1))
    report = f"select {world.schema}.report_worker(%s, 'x', '{{db_function}}', p_slots => %s)"
    with psycopg.connect(world.url, autocommit=True) as session:
        for slots in (7, 0):
            await asyncio.to_thread(session.execute, report.encode(), [python.id, slots])
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="p_slots"):
            session.execute(report.encode(), [uuid4(), -1])
        long = "repeat('x', 201)"
        for wrong in (
            f"array[{long}]",
            f"'{{x}}', array[{long}]",
            f"'{{x}}', p_lane => {long}",
            f"'{{x}}', p_process => {long}",
        ):
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="names of 200 characters at most"):
                session.execute(f"select {world.schema}.report_worker(gen_random_uuid(), 'x', {wrong})".encode())
        for wrong in (
            "null, 'x', '{x}'",
            "gen_random_uuid(), null, '{x}'",
            "gen_random_uuid(), repeat('x', 501), '{x}'",
            "gen_random_uuid(), 'x', '{x}', p_host => repeat('x', 501)",
            "gen_random_uuid(), 'x', '{x}', p_pid => null",
            # Who lists workers expects names.
            "gen_random_uuid(), 'x', '{x,null}'",
            "gen_random_uuid(), 'x', '{x}', '{null}'",
            "gen_random_uuid(), 'x', '{x}', p_jobs => '{null}'",
            "gen_random_uuid(), 'x', '{x}', p_lane => null",
        ):
            with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
                session.execute(f"select {world.schema}.report_worker({wrong})".encode())
            assert "p_worker and p_name must be given" in (refused.value.diag.message_hint or "")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="multidimensional"):
            session.execute(f"select {world.schema}.report_worker(gen_random_uuid(), 'x', '{{{{x}},{{y}}}}')".encode())
    (found,) = await store.workers.all()
    assert (found.name, found.kinds, set(found.lanes)) == ("py", ["greet"], {"general"})


async def test_a_flood_of_invented_workers_costs_those_who_list_them_little(world: ChannelWorld, store: Store) -> None:
    report = "select {s}.report_worker(%s, 'x', %s)"
    invented = "select {s}.report_worker(gen_random_uuid(), 'x', %s, p_ttl => %s) from generate_series(1, %s)"
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="lists short"):
        world.run(report, uuid4(), [f"{n:0200}" for n in range(101)])
    world.run(invented, ["x"], "1 microsecond", 500)
    world.run(invented, ["x"], "1 hour", 500)
    known = uuid4()
    world.run(report, known, ["x"])  # in the place of one that has ended
    assert len(await store.workers.all()) == 501
    world.run(invented, ["x"], "1 hour", 499)
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="1000 workers in SQL"):
        world.run(report, uuid4(), ["x"])
    world.run(report, known, ["x"])
