"""Steps, waits and events when workers die and transactions overlap: each race is forced."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import fault_jobs
import psycopg
import pytest
import step_jobs
from running_workers import eventually, working

from dutiful import Context, Dutiful, State
from dutiful.core.job import Claim
from dutiful.core.outcome import Snoozed
from dutiful.core.steps import StepState
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.postgres.engine.columns import change_arrays
from dutiful.stores.sqlite import SqliteStore
from dutiful.stores.sqlite.engine import Connection
from dutiful.stores.sqlite.steps import SqliteSteps
from faults import Fleet, until
from postgres_locks import after_a_wait, not_blocked
from suite.builders import at, change, claim, claim_one, start_one, state
from suite.steps import begin_to_wait, call, send, step, wait, wait_of


async def test_a_job_goes_on_where_its_worker_was_killed(store: Store, tmp_path: Path) -> None:
    diary, gate, killed = tmp_path / "diary", tmp_path / "gate", tmp_path / "killed"
    url = fault_jobs.address(store)
    step_jobs.app.configure(database_url=url)

    async def second_runs() -> bool:
        return diary.exists() and diary.read_text().split().count("second") > 0

    async def waits() -> bool:
        return await state(store, job.id) is State.BLOCKED

    async with (
        step_jobs.app,
        Fleet(
            "step_jobs:app",
            url,
            folder=tmp_path,
            path=Path(__file__).parent,
            environment={step_jobs.DIARY: str(diary)},
        ) as fleet,
    ):
        worker = fleet.start("--lease", "2s", "--no-services")
        job = await step_jobs.order.enqueue(gate=str(gate), killed=str(killed))
        await until(second_runs, "the second step runs")
        worker.kill()
        fleet.start("--lease", "2s", "--processes", "2")  # whose supervisor replaces those that are killed
        gate.touch()
        await until(waits, "it waits for its event")
        await step_jobs.app.send_event("paid", "7", "yes")
        assert await job.result("60s") == ["first", "second", "yes", "third"]

    assert diary.read_text().split() == ["first", "second", "second", "third"]
    steps = await store.steps.all(job.id)
    assert [(one.name, one.state) for one in steps] == [
        (name, StepState.DONE) for name in ("first", "second", "rest", "paid", "third")
    ]
    record = await store.queries.job(job.id)
    assert record is not None and (record.crashes, record.attempt) == (2, 1)
    assert await store.queries.check_places() == []


async def test_a_step_runs_again_only_if_its_worker_was_killed_before_its_record(store: Store, tmp_path: Path) -> None:
    diary, url = tmp_path / "diary", fault_jobs.address(store)
    step_jobs.app.configure(database_url=url)
    environment = {step_jobs.DIARY: str(diary), step_jobs.KILLS: str(tmp_path)}
    fleet = Fleet("step_jobs:app", url, folder=tmp_path, path=Path(__file__).parent, environment=environment)
    async with step_jobs.app, fleet:
        doomed = await fleet.doomed(store)
        job = await step_jobs.pay.enqueue()
        for mark in ("before the record", "after the record"):
            assert await fleet.start(*doomed).ended() == -signal.SIGKILL
            assert (tmp_path / mark).exists()
        fleet.start("--lease", "2s")
        assert await job.result("60s") == ["reserve", "charge", "mail", "archive"]

    assert diary.read_text().split() == ["reserve", "charge", "charge", "mail", "archive"]
    record = await store.queries.job(job.id)
    assert record is not None and (record.crashes, record.attempt) == (2, 1)
    assert await store.queries.check_places() == []


WAIT = "SELECT * FROM dutiful.wait_in_step($1, $2, 'paid', 0, 'event', 'event paid 7', 's', '1 h', 'paid', '7', $3)"


async def timed_out(store: Store) -> Claim:
    """A job that runs again because no event came in time, and has not looked yet."""
    await begin_to_wait(store)
    await store.steps.deliver(10, now=at(3600))
    return await claim_one(store, now=at(3601))


@asynccontextmanager
async def under_way(store: SqliteStore, work: Callable[[Connection], Any]) -> AsyncIterator[list[Any]]:
    """Its writer has done the work, and does not commit before the block ends."""
    done, commit, answer = threading.Event(), threading.Event(), list[Any]()

    def write(db: Connection) -> None:
        answer.append(work(db))
        done.set()
        commit.wait(60)

    writing = asyncio.create_task(store.engine.write(write))
    await asyncio.to_thread(done.wait, 60)
    try:
        yield answer
    finally:
        commit.set()
        await writing


class TestRaces:
    """On Postgres, where transactions overlap."""

    @pytest.fixture
    async def store(self, pg18_url: str) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(pg18_url)
        await store.open()
        yield store
        assert await store.queries.check_places() == []
        await store.close()

    @pytest.fixture
    async def other(self, pg18_url: str) -> AsyncIterator[Any]:
        """A connection in an open transaction."""
        connection = await asyncpg.connect(pg18_url)
        await connection.execute("BEGIN")
        yield connection
        connection.terminate()

    async def test_a_delivery_sees_a_wait_that_has_begun(self, store: PostgresStore, other: Any, pg18_url: str) -> None:
        claimed = await start_one(store)
        await other.fetch(
            "SELECT * FROM dutiful.wait_in_step($1, $2, 'paid', 0, 'event', 'c', 's', '1 h', 'paid', '7', $3)",
            claimed.job_id, claimed.claim_id, at(0),
        )  # fmt: skip
        await send(store)

        await after_a_wait(pg18_url, store.steps.deliver(10, now=at(1)), other.execute("COMMIT"))

        assert (await step(store, claimed)).state is StepState.DONE

    async def test_neither_waits_nor_deliveries_take_a_lock_that_any_role_may_keep(
        self, store: PostgresStore, other: Any
    ) -> None:
        """An advisory lock is anyone's who has seen its number in pg_locks."""
        claimed = await start_one(store)
        await send(store)
        await other.fetch(
            "SELECT * FROM dutiful.wait_in_step($1, $2, 'paid', 0, 'event', 'c', 's', '1 h', 'paid', '7', $3)",
            claimed.job_id, claimed.claim_id, at(0),
        )  # fmt: skip
        await other.fetch("SELECT * FROM dutiful.deliver_events(10, $1)", at(1))

        held = await other.fetch("SELECT locktype FROM pg_locks WHERE pid = pg_backend_pid()")

        assert "advisory" not in {row["locktype"] for row in held}

    async def test_a_wait_sees_an_event_that_is_being_delivered(
        self, store: PostgresStore, other: Any, pg18_url: str
    ) -> None:
        claimed = await start_one(store)
        await send(store)
        await other.fetch("SELECT * FROM dutiful.deliver_events(10, $1)", at(1))

        found = await after_a_wait(pg18_url, wait(store, claimed, now=at(1)), other.execute("COMMIT"))

        assert found.state is StepState.DONE

    async def test_an_attempt_that_ends_sees_the_event_that_is_being_delivered(
        self, store: PostgresStore, other: Any, pg18_url: str
    ) -> None:
        claimed = await start_one(store)
        await wait(store, claimed)
        await send(store)
        await other.fetch("SELECT * FROM dutiful.deliver_events(10, $1)", at(1))
        ended = change(claimed, Snoozed(timedelta(0), wait=("paid",)))

        assert await after_a_wait(pg18_url, store.claims.settle([ended], now=at(1)), other.execute("COMMIT")) == []

        assert await state(store, claimed.job_id) is State.READY

    async def test_a_delivery_wakes_a_job_whose_attempt_is_ending(
        self, store: PostgresStore, other: Any, pg18_url: str
    ) -> None:
        claimed = await start_one(store)
        await wait(store, claimed)
        ended = change_arrays([change(claimed, Snoozed(timedelta(0), wait=("paid",)))])
        numbers = ", ".join(f"${n}" for n in range(2, 2 + len(ended)))
        await other.fetch(f"SELECT * FROM dutiful.settle(false, false, $1, {numbers})", at(1), *map(list, ended))
        await send(store)

        woken = await after_a_wait(pg18_url, store.steps.deliver(10, now=at(2)), other.execute("COMMIT"))

        assert woken.levels == {("default", 100)}
        assert await state(store, claimed.job_id) is State.READY

    async def test_an_event_of_an_open_transaction_is_delivered_after_its_commit(
        self, store: PostgresStore, other: Any, pg18_url: str
    ) -> None:
        claimed = await begin_to_wait(store)
        await other.fetch("SELECT dutiful.send_event('paid', '7', '{\"amount\": 5}')")

        assert (await not_blocked(pg18_url, store.steps.deliver(10, now=at(1)))).seen == 0
        assert (await wait(store, await start_one(store, now=at(1)), now=at(1))).state is StepState.WAITING
        await other.execute("COMMIT")
        assert (await store.steps.deliver(10, now=at(2))).seen == 1

        assert await state(store, claimed.job_id) is State.READY

    async def test_an_event_that_comes_while_its_wait_times_out_is_left_to_others(
        self, store: PostgresStore, other: Any, pg18_url: str
    ) -> None:
        late = await timed_out(store)
        (ended,) = await other.fetch(WAIT, late.job_id, late.claim_id, at(3601))
        await send(store, now=at(3601))

        delivered = await after_a_wait(pg18_url, store.steps.deliver(10, now=at(3602)), other.execute("COMMIT"))

        assert (ended["state"], delivered.seen) == ("timed_out", 1)
        found = await step(store, late)
        assert (found.state, found.result) == (StepState.TIMED_OUT, None)
        assert (await wait(store, await start_one(store, now=at(3602)), now=at(3602))).state is StepState.DONE

    async def test_a_wait_whose_time_is_over_gets_the_event_that_is_being_delivered(
        self, store: PostgresStore, other: Any, pg18_url: str
    ) -> None:
        late = await timed_out(store)
        await send(store, now=at(3601))
        await other.fetch("SELECT * FROM dutiful.deliver_events(10, $1)", at(3601))

        found = await after_a_wait(pg18_url, wait(store, late, now=at(3602)), other.execute("COMMIT"))

        assert (found.state, found.result) == (StepState.DONE, {"amount": 5})

    async def test_an_event_wakes_a_job_once_that_its_timeout_is_waking(
        self, store: PostgresStore, other: Any, pg18_url: str
    ) -> None:
        claimed = await begin_to_wait(store)
        await other.fetch("SELECT * FROM dutiful.deliver_events(10, $1)", at(3600))  # which sees no event
        await send(store, now=at(3600))

        woken = await after_a_wait(pg18_url, store.steps.deliver(10, now=at(3600)), other.execute("COMMIT"))

        assert woken.seen == 1
        assert (await step(store, claimed)).state is StepState.DONE
        assert [one.job_id for one in await claim(store, now=at(3601))] == [claimed.job_id]

    async def test_a_timeout_wakes_no_job_that_its_event_is_waking(
        self, store: PostgresStore, other: Any, pg18_url: str
    ) -> None:
        claimed = await begin_to_wait(store)
        await send(store, now=at(3599))
        await other.fetch("SELECT * FROM dutiful.deliver_events(10, $1)", at(3599))

        woken = await after_a_wait(pg18_url, store.steps.deliver(10, now=at(3600)), other.execute("COMMIT"))

        assert (woken.seen, woken.levels) == (0, frozenset())
        assert (await step(store, claimed)).state is StepState.DONE
        assert [one.job_id for one in await claim(store, now=at(3601))] == [claimed.job_id]

    async def test_a_step_whose_lease_is_locked_holds_up_no_other(
        self, store: PostgresStore, other: Any, pg18_url: str
    ) -> None:
        locked, free = await start_one(store), await start_one(store)
        await other.fetch("SELECT 1 FROM dutiful.lease WHERE job_id = $1 FOR UPDATE", locked.job_id)

        unstored = await not_blocked(pg18_url, store.steps.put([call(locked), call(free)], now=at(1)))

        assert unstored.lost == frozenset()
        assert unstored.busy == {locked.claim_id}
        assert (await step(store, free)).state is StepState.DONE


class TestRacesOnSqlite:
    """The file has one writer: a second store waits until the transaction of the first has ended."""

    @pytest.fixture
    async def stores(self, migrated_path: Path) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
        both = SqliteStore(migrated_path), SqliteStore(migrated_path)
        for store in both:
            await store.open()
        yield both
        assert await both[0].queries.check_places() == []
        for store in both:
            await store.close()

    async def test_an_event_that_comes_while_its_wait_times_out_is_left_to_others(
        self, stores: tuple[SqliteStore, SqliteStore]
    ) -> None:
        store, other = stores
        late = await timed_out(store)
        ends = lambda db: SqliteSteps.wait.__wrapped__(other.steps, db, wait_of(late), now=at(3601))  # type: ignore[attr-defined]  # noqa: E731

        async with under_way(other, ends) as ended:
            event = asyncio.create_task(send(store, now=at(3601)))
            delivery = asyncio.create_task(store.steps.deliver(10, now=at(3602)))
        await event

        assert (ended[0][0].state, (await delivery).seen) == (StepState.TIMED_OUT, 1)
        assert (await step(store, late)).state is StepState.TIMED_OUT
        assert (await wait(store, await start_one(store, now=at(3602)), now=at(3602))).state is StepState.DONE

    async def test_a_wait_whose_time_is_over_gets_the_event_that_is_being_delivered(
        self, stores: tuple[SqliteStore, SqliteStore]
    ) -> None:
        store, other = stores
        late = await timed_out(store)
        await send(store, now=at(3601))
        deliver = lambda db: SqliteSteps.deliver.__wrapped__(other.steps, db, 10, now=at(3601))  # type: ignore[attr-defined]  # noqa: E731

        async with under_way(other, deliver) as delivered:
            waiting = asyncio.create_task(wait(store, late, now=at(3602)))

        assert delivered[0].seen == 1
        found = await waiting
        assert (found.state, found.result) == (StepState.DONE, {"amount": 5})


@pytest.mark.parametrize("app_url", ["postgres18", "pg16_url"], indirect=True)
async def test_sql_sends_events(app: Dutiful, app_url: str) -> None:
    @app.job
    async def order(ctx: Context) -> Any:
        return await ctx.wait_for_event("paid", "7")

    async def waits() -> bool:
        record = await app.find(job.id)
        return record is not None and record.state is State.BLOCKED

    async with working(app):
        job = await order.enqueue()
        await eventually(waits)
        with psycopg.connect(app_url, autocommit=True) as connection:
            connection.execute("select dutiful.send_event('paid', '7', '{\"amount\": 5}')")
            with pytest.raises(psycopg.Error, match="p_keep"):
                connection.execute("select dutiful.send_event('paid', '7', p_keep => '0 s')")
            for name, key, wrong in (("", "7", "p_name"), ("paid", "x" * 201, "p_key"), (None, "7", "p_name")):
                with pytest.raises(psycopg.Error, match=f"{wrong} must have 1 to 200 characters"):
                    connection.execute("select dutiful.send_event(%s, %s)", (name, key))
            with pytest.raises(psycopg.Error, match="p_data has 1048578 bytes of JSON, and an event may have 1 MiB"):
                connection.execute("select dutiful.send_event('paid', '7', to_jsonb(repeat('x', 1048576)))")
        assert await job.result("20s") == {"amount": 5}
