"""Workers that start while their database is away or full: they wait for it, alone and under a supervisor."""

import asyncio
import time
from pathlib import Path

import fault_jobs
import pytest
from fault_jobs import executions
from outages import AWAY_LINE, BACK_LINE, logged, warnings

from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from faults import children, end, until
from servers import PostgresServer

TWO_SLOTS = ("--fast", "0", "--general", "2")


async def test_a_worker_that_starts_while_the_database_is_away_waits_for_it(
    own_server: PostgresServer, own_store: Store, tmp_path: Path
) -> None:
    async with fault_jobs.fleet(own_store, tmp_path) as fleet:
        await asyncio.to_thread(own_server.stop)
        worker = fleet.start(*TWO_SLOTS)
        await until(lambda: logged(worker, AWAY_LINE), "the worker waits for the database")
        await asyncio.to_thread(own_server.start)
        back = time.monotonic()
        await worker.ready(own_store)
        print(f"\nready {time.monotonic() - back:.2f} s after the return")
        assert isinstance(await (await fault_jobs.nothing.enqueue()).result(timeout="60s"), int)
        assert warnings(worker) == [AWAY_LINE, BACK_LINE]


async def test_a_worker_that_has_waited_long_enough_for_the_database_ends(
    own_server: PostgresServer, own_store: Store, tmp_path: Path
) -> None:
    async with fault_jobs.fleet(own_store, tmp_path) as fleet:
        await asyncio.to_thread(own_server.stop)
        worker = fleet.start(*TWO_SLOTS, "--startup-timeout", "1s")

        assert await worker.ended() == 69
        assert AWAY_LINE in worker.output
        impatient = fleet.start(*TWO_SLOTS, "--startup-timeout", "0s")
        assert await impatient.ended() == 69
        assert AWAY_LINE not in impatient.output


@pytest.mark.parametrize("problem", ["role", "schema", "database"])
async def test_a_worker_does_not_wait_for_what_no_time_mends(
    own_server: PostgresServer, own_store: Store, tmp_path: Path, problem: str
) -> None:
    wrong = {
        "role": own_server.dsn("dutiful").replace("postgres@", "stranger@"),
        "schema": own_server.dsn("postgres"),
        "database": own_server.dsn("missing"),
    }
    async with fault_jobs.fleet(own_store, tmp_path) as fleet:
        worker = fleet.start(*TWO_SLOTS, environment={"DUTIFUL_DATABASE_URL": wrong[problem]})

        assert await worker.ended() == 69
        assert AWAY_LINE not in worker.output


async def test_a_worker_waits_for_a_database_that_has_no_connection_left(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    own_server.run_sql("create role app login connection limit 0")
    own_server.run_sql("create database full_one owner app")
    own_server.run_sql("alter role app connection limit -1")
    store = PostgresStore(own_server.dsn("full_one").replace("postgres@", "app@"))
    await store.migrate()
    await store.open()
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        own_server.run_sql("alter role app connection limit 0")
        worker = fleet.start(*TWO_SLOTS)
        await until(lambda: logged(worker, AWAY_LINE), "the worker waits for a connection")
        assert "too many connections" in worker.output
        own_server.run_sql("alter role app connection limit -1")
        await worker.ready(store)
    await store.close()


async def test_children_of_a_supervisor_are_back_as_soon_as_the_database(
    own_server: PostgresServer, own_store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(own_store, tmp_path, lease="1m") as fleet:
        supervisor = fleet.start(*TWO_SLOTS, "--processes", "2")

        async def started() -> bool:
            return len(await own_store.workers.all()) == 2

        await until(started, "both children have started")
        for _ in range(4):
            await fault_jobs.app.enqueue("wait", {"gate": str(gate)})

        async def full() -> bool:
            return len(executions(tmp_path)) == 4

        await until(full, "every slot is taken")
        first = {record.id for record in await own_store.workers.all()}
        await asyncio.to_thread(own_server.stop)
        for pid in children(supervisor.pid):
            end(pid)

        async def waiting() -> bool:
            # The first two children may have been killed before they noticed anything.
            *_, second = supervisor.output.split("worker 0 is process", 2)
            return supervisor.output.count("is process") == 4 and second.count(AWAY_LINE) >= 2

        await until(waiting, "both children have been started again")
        await asyncio.to_thread(own_server.start)

        async def returned() -> bool:
            return len({record.id for record in await own_store.workers.all()} - first) == 2

        await until(returned, "both children work again")

        async def again() -> bool:
            return len(executions(tmp_path)) >= 6  # each of them runs one suspect at a time

        await until(again, "the jobs of dead children run again, long before their leases end")
        gate.touch()
