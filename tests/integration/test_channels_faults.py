"""Worker processes that are killed and stopped, and a database that restarts: each fact is recorded once."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import Any
from uuid import UUID

import psycopg
import pytest
from channel_jobs import DIARY
from channel_services import http_service
from channel_world import ChannelWorld, channel_world

from databases import Postgres
from faults import Process, until
from servers import PostgresServer

HERE = Path(__file__).parent
LOCK = 4712


class Workers:
    """`dutiful sql-worker` in processes, with the login that may only execute functions."""

    def __init__(self, world: ChannelWorld, folder: Path) -> None:
        self._world = world
        self._folder = folder
        self.processes: list[Process] = []

    def start(self, *options: str, **settings: str) -> Process:
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("DUTIFUL_") and k != "DATABASE_URL"},
            "DUTIFUL_DATABASE_URL": self._world.url,
            "DUTIFUL_SCHEMA": self._world.schema,
            "PYTHONPATH": str(HERE),
            DIARY: str(self._folder / "diary"),
            **{f"DUTIFUL_{name.upper()}": value for name, value in settings.items()},
        }
        command = [sys.executable, "-m", "dutiful.cli", "sql-worker", "channel_jobs:channels", "--poll", "100ms"]
        process = Process([*command, *options], environment, self._folder / f"worker-{len(self.processes)}.log")
        self.processes.append(process)
        return process

    @property
    def diary(self) -> list[str]:
        path = self._folder / "diary"
        return path.read_text().splitlines() if path.exists() else []

    async def called(self, times: int = 1) -> None:
        async def look() -> bool:
            return len(self.diary) >= times

        await until(look, "the provider was called")


@contextmanager
def workers(world: ChannelWorld, folder: Path) -> Iterator[Workers]:
    found = Workers(world, folder)
    try:
        yield found
    except BaseException as error:
        for process in found.processes:
            error.add_note(f"{process.log.name}:\n{process.output[-4000:]}")
        raise
    finally:
        for process in found.processes:
            process.close()


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[ChannelWorld]:
    version = getattr(request, "param", "18")
    with channel_world(request.getfixturevalue(f"postgres{version}")) as world:
        yield world


@pytest.fixture
def world(made: ChannelWorld) -> ChannelWorld:
    made.reset()
    return made


def claims(world: ChannelWorld, job_id: UUID) -> list[tuple[str, UUID]]:
    """Every claim of a job: how it ended, and of which worker it was."""
    rows = world.run(
        "select outcome, worker_id from (select outcome, worker_id, claim_id from {s}.attempt where job_id = %s"
        " union all select state, worker_id, claim_id from {s}.finished where job_id = %s) c order by claim_id",
        job_id,
        job_id,
    )
    return [(row["outcome"], row["worker_id"]) for row in rows]


async def lock_held(world: ChannelWorld) -> bool:
    return bool(world.run("select 1 from pg_locks where locktype = 'advisory' and granted"))


async def lock_awaited(world: ChannelWorld) -> bool:
    return bool(world.run("select 1 from pg_locks where locktype = 'advisory' and not granted"))


@pytest.mark.req("S6", "S27", "S39", "S80", "S81")
@pytest.mark.parametrize("made", ["18", "16"], indirect=True)
async def test_a_worker_killed_between_the_provider_and_the_success_handler_leaves_one_fact(
    world: ChannelWorld, tmp_path: Path
) -> None:
    waits = world.define("record_slowly", f"perform pg_advisory_xact_lock({LOCK}); return comms.record_success(p);")
    holder = psycopg.connect(world.logins.superuser_url, autocommit=True)
    holder.execute("select pg_advisory_lock(%s)", [LOCK])

    with http_service() as sms, workers(world, tmp_path) as fleet:
        options = ("--lease", "2s")
        killed = fleet.start(*options, sms_url=sms.url)
        request = {"to_number": "+15550100", "body": "hi"}
        job_id = world.send("sms", 1, success_handler=waits, request=request)
        await until(lambda: lock_awaited(world), "the provider has accepted, and the success handler has begun")
        killed.kill()
        holder.close()
        fleet.start(*options, sms_url=sms.url)
        (row,) = await world.ended(job_id, within=60)

    assert row["state"] == "completed" and row["result"] == {"status": "succeeded", "accepted": True}
    assert world.facts() == ([1], [])
    # The backend of the dead worker has run its handler to the end, and rolled it back: it was completed nowhere.
    assert world.payloads("success") == [
        {"original_payload": world.payloads("before")[0], "worker_payload": {"id": "m1"}}
    ]
    assert [request.headers["idempotency-key"] for request in sms.requests] == [str(job_id)] * 2
    (lost, first), (ended, second) = claims(world, job_id)
    assert (lost, ended) == ("lost", "completed") and first != second


@pytest.mark.req("S80")
async def test_a_function_does_not_outlive_its_worker_though_it_catches_its_cancellation(
    world: ChannelWorld, tmp_path: Path
) -> None:
    body = "perform pg_sleep(3600); exception when query_canceled then null; end; end loop;"
    world.call(world.define("stubborn", f"perform pg_advisory_xact_lock({LOCK}); loop begin {body}"))

    async def released() -> bool:
        return not await lock_held(world)

    with workers(world, tmp_path) as found:
        process = found.start()
        await until(partial(lock_held, world), "the function runs")
        process.kill()
        await until(released, "the function has ended")


async def test_a_stop_lets_running_jobs_finish_and_takes_no_more(world: ChannelWorld, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with workers(world, tmp_path) as fleet:
        worker = fleet.start("--concurrency", "1")
        running, waiting = (world.send("push", n, request={"gate": str(gate)}) for n in (1, 2))
        await fleet.called()
        worker.signal(SIGTERM)

        async def stopping() -> bool:
            return "stopping" in worker.output

        await until(stopping, "the worker has heard it")
        gate.touch()
        assert await worker.ended() == 0

    assert [world.job(job_id)["state"] for job_id in (running, waiting)] == ["completed", "ready"]
    assert world.facts() == ([1], []) and "no job was left running" in worker.output


async def test_jobs_that_outlast_the_grace_period_are_given_back_unless_their_provider_was_called(
    world: ChannelWorld, tmp_path: Path
) -> None:
    waits = world.define("waits", f"perform pg_advisory_xact_lock({LOCK}); return comms.answer(p);")
    holder = psycopg.connect(world.logins.superuser_url, autocommit=True)
    holder.execute("select pg_advisory_lock(%s)", [LOCK])
    with workers(world, tmp_path) as fleet:
        worker = fleet.start("--grace", "100ms", "--lease", "1h")
        job_id = world.send("push", 1, request={"gate": str(tmp_path / "never")})
        uncalled = world.send("push", 2, before_handler=waits)
        await fleet.called()
        await until(lambda: lock_awaited(world), "a before handler runs")
        worker.signal(SIGTERM)
        assert await worker.ended() == 1
        holder.close()
        rows = [world.job(one) for one in (uncalled, job_id)]
        assert [(row["state"], row["attempt"]) for row in rows] == [("ready", 0), ("running", 1)]
        assert "1 were given back, 1 have called their provider" in worker.output
        world.run("select * from {s}.maintain_jobs(array['push'], p_now => now() + interval '2 hours')")
        (tmp_path / "never").touch()
        fleet.start()
        await world.ended(job_id)

    # Its second call knows that it is one.
    assert [line for line in fleet.diary if str(job_id) in line] == [f"{job_id} 1", f"{job_id} 2"]


# --- the database


@pytest.fixture
def own_world(own_server: PostgresServer) -> Iterator[tuple[ChannelWorld, PostgresServer]]:
    with channel_world(own_server) as world:
        yield world, own_server


@pytest.mark.parametrize("mode", ["immediate", "fast"])
async def test_a_database_that_restarts_during_work_loses_no_outcome(
    own_world: tuple[ChannelWorld, PostgresServer], tmp_path: Path, mode: Any
) -> None:
    world, server = own_world
    gate = tmp_path / "gate"
    with workers(world, tmp_path) as fleet:
        worker = fleet.start()
        jobs = [world.send("push", n, request={"gate": str(gate)}) for n in range(3)]
        waits = world.define("waits", f"perform pg_advisory_xact_lock({LOCK}); return comms.answer(p);")
        holder = psycopg.connect(world.logins.superuser_url, autocommit=True)
        holder.execute("select pg_advisory_lock(%s)", [LOCK])  # until the server stops
        await fleet.called(3)
        in_function = world.call(waits, answer={"status": "succeeded"})
        await until(lambda: lock_awaited(world), "a function runs")
        world.close()
        server.stop(mode)
        gate.touch()  # the provider accepts while the database is away

        async def noticed() -> bool:
            return "the database is away" in worker.output

        await until(noticed, "the worker has noticed")
        server.start()
        again = ChannelWorld(world.logins)
        rows = await again.ended(*jobs, in_function)
        more = again.send("push", 9)
        await again.ended(more)
        worker.signal(SIGTERM)
        assert await worker.ended() == 0

    assert {row["state"] for row in rows} == {"completed"}
    assert again.facts() == ([0, 1, 2, 9], [])
    assert sorted(fleet.diary) == sorted(f"{job_id} 1" for job_id in (*jobs, more))
    assert again.seen().count("answer") == 1
    assert again.run("select count(*) as n from {s}.attempt") == [{"n": 0}]  # all under their first claims
    again.close()


async def test_restarts_of_the_database_are_no_fault_of_the_function_that_they_cut(
    own_world: tuple[ChannelWorld, PostgresServer], tmp_path: Path
) -> None:
    world, server = own_world
    waits = world.define(
        "waits",
        f"perform pg_advisory_xact_lock({LOCK});"
        " while not exists (select 1 from comms.seen where handler = 'open') loop perform pg_sleep(0.02); end loop;"
        " return comms.answer(p);",
    )
    with workers(world, tmp_path) as fleet:
        fleet.start()
        job_id = world.call(waits, answer={"status": "succeeded"})
        for _ in range(3):
            await until(partial(lock_held, world), "the function runs")
            world.close()
            server.stop("fast")
            server.start()
            world = ChannelWorld(world.logins)
        await until(partial(lock_held, world), "the function runs")
        world.run("insert into comms.seen (handler) values ('open')")
        (row,) = await world.ended(job_id)

    assert (row["state"], row["attempt"], row["crashes"]) == ("completed", 1, 0)
    world.close()


@pytest.mark.usefixtures("postgres18")
def test_the_login_needs_the_group(postgres18: Postgres, tmp_path: Path) -> None:
    with channel_world(postgres18) as world, workers(world, tmp_path) as fleet:
        denied = fleet.start(database_url=world.logins.url("nobody"))
        missing = fleet.start(database_url=world.url, schema="elsewhere")
        lite = fleet.start(database_url="sqlite:///x.db")
        codes = [process._process.wait(60) for process in (denied, missing, lite)]

    assert all(code not in (0, None) for code in codes)
    assert "may not execute dequeue" in denied.output and "`dutiful roles`" in denied.output
    assert f"grant {world.schema}_sql_worker to" in denied.output
    assert "`dutiful migrate`" in missing.output and "needs Postgres" in lite.output
    assert "Traceback" not in denied.output + missing.output + lite.output
