"""Limits with real workers: never exceeded, also when workers die; what waits starts as soon as it may."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import limit_jobs
import pytest
from fault_jobs import address
from operating import operator
from running_workers import eventually, running

from dutiful import (
    PREVIOUS,
    Concurrency,
    Dutiful,
    JobFailed,
    PayloadInvalid,
    RateLimit,
    RateLimited,
    Retry,
    ShutdownTimeout,
    UsageError,
    chain,
)
from dutiful.core.errors import StoreBusy
from dutiful.core.limits import KindLimit, Limit
from dutiful.declare.lane import LaneSettings
from dutiful.delivery.base import QueueLevels
from dutiful.kind import Handle
from dutiful.maintenance import runner
from dutiful.maintenance.limits import Admitter
from dutiful.maintenance.runner import MaintenanceRunner
from dutiful.store import Store
from dutiful.store.claims import QueueLevel
from dutiful.store.leadership import Survey
from dutiful.store.queries import JobFilter
from faults import Fleet, WorkerProcess, until
from suite.builders import KIND
from suite.limits import keyed


@dataclass
class Account:
    account: str


@pytest.fixture
def leader_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader looks once, so that only hints and ends of jobs cause admissions."""
    monkeypatch.setattr(runner, "LEADER_POLL", 3600.0)


async def all_done(store: Store, jobs: Sequence[Handle[Any]]) -> bool:
    records = [await store.queries.job(job.id) for job in jobs]
    return all(record is not None and record.state.final for record in records)


async def spans(store: Store, job_id: UUID) -> list[tuple[datetime, datetime]]:
    """When each attempt of a finished job was claimed, and when it ended."""
    record = await store.queries.job(job_id)
    assert record is not None and record.started_at is not None and record.finished_at is not None
    earlier = [(one.claimed_at, one.ended_at) for one in await store.queries.attempts(job_id)]
    return [*((began, ended) for began, ended in earlier if began), (record.started_at, record.finished_at)]


def most_at_once(spans: Iterable[tuple[datetime, datetime]]) -> int:
    # At one moment, an end comes before a begin.
    moments = sorted((at, step) for began, ended in spans for at, step in ((began, 1), (ended, -1)))
    running = most = 0
    for _, step in moments:
        running += step
        most = max(most, running)
    return most


async def test_no_more_jobs_of_a_key_run_at_once_and_the_next_starts_when_one_ends(
    app: Dutiful, leader_sleeps: None
) -> None:
    app.configure(lanes=(LaneSettings("all", 20),))
    running_now: Counter[str] = Counter()
    gate = asyncio.Semaphore(0)

    @app.job(concurrency=Concurrency(3, key="account"))
    async def call(account: str) -> None:
        running_now[account] += 1
        assert running_now[account] <= 3
        await gate.acquire()
        running_now[account] -= 1

    async def three_of_each() -> bool:
        return running_now == {"acme": 3, "zeta": 3}

    async with running(app):
        jobs = [await call.enqueue(account=account) for _ in range(10) for account in ("acme", "zeta")]
        await eventually(three_of_each)
        for _ in range(8):
            gate.release()
            await eventually(three_of_each)
        for _ in range(12):
            gate.release()
        await asyncio.gather(*(job.result(60) for job in jobs))


async def test_a_job_that_comes_in_while_its_worker_becomes_the_leader_is_admitted(
    app: Dutiful, leader_sleeps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job(concurrency=Concurrency(1))
    async def call() -> str:
        return "done"

    jobs: list[Handle[str]] = []
    hinted = asyncio.Event()
    survey, note_hint = MaintenanceRunner._survey, MaintenanceRunner.hinted

    async def survey_before_the_job_comes_in(self: MaintenanceRunner, worker_id: UUID) -> Survey:
        found = await survey(self, worker_id)
        if not jobs:
            hinted.clear()
            jobs.append(await call.enqueue())
            async with asyncio.timeout(60):
                await hinted.wait()
        return found

    def hint(self: MaintenanceRunner, levels: QueueLevels) -> None:
        note_hint(self, levels)
        hinted.set()

    monkeypatch.setattr(MaintenanceRunner, "_survey", survey_before_the_job_comes_in)
    monkeypatch.setattr(MaintenanceRunner, "hinted", hint)
    async with running(app):
        await eventually(lambda: asyncio.sleep(0, bool(jobs)))
        assert await jobs[0].result(30) == "done"


async def test_an_admission_that_failed_is_repeated(
    app: Dutiful, leader_sleeps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job(concurrency=Concurrency(1))
    async def call() -> str:
        return "done"

    admitting, failed, enqueued, admit = Counter[str](), list[bool](), asyncio.Event(), Admitter._admit

    async def fails_once(self: Admitter, everywhere: bool = False, ended: Any = None) -> list[QueueLevel]:
        if admitting["stopped"]:
            await enqueued.wait()
        if enqueued.is_set() and not failed:
            failed.append(True)
            raise StoreBusy("a lock was held for too long")
        admitting["now"] += 1
        try:
            return await admit(self, everywhere, ended)
        finally:
            admitting["now"] -= 1

    monkeypatch.setattr(Admitter, "_admit", fails_once)
    async with running(app) as worker:
        maintenance = worker._maintenance
        assert maintenance is not None
        await eventually(lambda: asyncio.sleep(0, maintenance.leading))
        admitting["stopped"] = 1  # an admission that is under way could take the job before it is known to be there
        await eventually(lambda: asyncio.sleep(0, not admitting["now"]))
        job = await call.enqueue()
        enqueued.set()
        assert await job.result(30) == "done"
    assert failed


async def test_jobs_without_a_limit_are_not_held_up_by_those_that_wait(app: Dutiful, leader_sleeps: None) -> None:
    release = asyncio.Event()

    @app.job(concurrency=Concurrency(1))
    async def slow() -> None:
        await release.wait()

    @app.job
    async def quick() -> str:
        return "done"

    async with running(app):
        await slow.enqueue_many({} for _ in range(50))
        assert await (await quick.enqueue()).result(60) == "done"
        release.set()


@pytest.mark.req("L101")
async def test_no_more_jobs_start_within_a_time_than_its_limit_allows(app: Dutiful) -> None:
    per = timedelta(seconds=1)

    @app.job(rate=RateLimit(3, per=per, key="account"))
    async def call(account: str) -> None: ...

    async with running(app) as _:
        jobs = await call.enqueue_many({"account": "acme"} for _ in range(8))
        await asyncio.gather(*(job.result(60) for job in jobs))
        store = (await app.client()).store
        starts = sorted([(await spans(store, job.id))[0][0] for job in jobs])

    for first, fourth in zip(starts, starts[3:], strict=False):
        assert fourth - first >= per


async def test_a_handler_that_a_stopping_worker_interrupts_has_started(app: Dutiful) -> None:
    began = asyncio.Event()

    @app.job(rate=RateLimit(1, per="1h"))
    async def call() -> None:
        began.set()
        await asyncio.sleep(3600)

    with pytest.raises(ShutdownTimeout):
        async with running(app) as worker:
            job = await call.enqueue()
            await asyncio.wait_for(began.wait(), 60)
            worker.abort()
    store = (await app.client()).store
    await store.limits.admit(10)

    record = await job.record()
    assert (record.state, record.gate, record.attempt) == ("blocked", "limit", 0)


@pytest.mark.req("L101")
async def test_a_service_that_asks_one_job_to_wait_holds_all_with_its_key(app: Dutiful) -> None:
    calls: list[str] = []

    @app.job(
        retry=Retry(max_attempts=1),
        # The next one is admitted when the first has ended, and by then its key is held.
        concurrency=Concurrency(1, key="account"),
        rate=RateLimit(1000, per="10ms", key="account", feedback=True),
    )
    async def call(account: str) -> None:
        calls.append(account)
        if account == "acme":
            raise RateLimited(retry_after="1h")

    async with running(app):
        refused = await call.enqueue_many({"account": "acme"} for _ in range(5))
        with pytest.raises(JobFailed):
            await refused[0].result(60)
        other = await call.enqueue(account="zeta")
        await other.result(60)
        operator = await app.operator()
        waits = [(await operator.jobs.explain(job.id)).sentence for job in refused[1:]]

    assert calls == ["acme", "zeta"]
    assert all("with its key 'acme' has asked to wait until" in one for one in waits), waits


async def test_a_job_is_known_to_wait_for_its_service_however_many_keys_wait(store: Store) -> None:
    limit = Limit("calls", 1, per=timedelta(minutes=1), feedback=True)
    await store.limits.put({KIND: [KindLimit(limit)]})
    await store.limits.choose("calls", 0)
    quiet = keyed("quiet")
    await store.jobs.insert([quiet, *(keyed(f"key {n // 2}") for n in range(2_002))])
    await store.limits.hold({quiet.id: timedelta(hours=1)})
    await store.limits.admit(10_000)

    why = await operator(store).jobs.explain(quiet.id)

    assert "with its key 'quiet' has asked to wait until" in why.sentence


async def test_a_function_of_the_payload_gives_the_key_and_none_means_no_limit(app: Dutiful) -> None:
    @app.job(concurrency=Concurrency(1, key=lambda account, vip, **_: None if vip else account.lower()))
    async def call(account: str, vip: bool = False) -> None: ...

    records = [await (await call.enqueue(account=account)).record() for account in ("Acme", "ACME")]
    records.append(await (await call.enqueue(account="acme", vip=True)).record())

    assert [list((record.options or {})["limits"].values()) for record in records] == [["acme"], ["acme"], [None]]


async def test_a_field_that_is_no_text_gives_the_key_that_the_store_reads_from_a_payload(app: Dutiful) -> None:
    """A job that is enqueued by SQL has no other; with two keys, twice as many would run."""

    @app.job(concurrency=[Concurrency(1, key="vip", name="vip"), Concurrency(1, key="number", name="number")])
    async def call(vip: bool, number: int) -> None: ...

    record = await (await call.enqueue(vip=True, number=7)).record()
    assert record.options == {"limits": {"vip": "true", "number": "7"}}


async def test_a_function_that_names_the_tenant_gets_that_of_the_job(app: Dutiful) -> None:
    @app.job(concurrency=Concurrency(key=lambda tenant, **_: tenant, limit=5))
    async def call(account: str) -> None: ...

    @app.job(concurrency=Concurrency(1, key=lambda tenant: tenant))
    async def post(tenant: str) -> None: ...

    jobs = [
        await app.tenant("zeta").enqueue(call, {"account": "acme"}),
        await call.enqueue(account="acme"),
        await app.tenant("zeta").enqueue(post, {"tenant": "acme"}),
    ]
    found = [(await one.record()).options or {} for one in jobs]
    assert [list(one["limits"].values()) for one in found] == [["zeta"], [None], ["acme"]]


async def test_a_dead_letter_with_another_payload_has_the_keys_of_that(app: Dutiful) -> None:
    @app.job(retry=Retry(max_attempts=1), concurrency=Concurrency(1, key="account"))
    async def call(account: str) -> None:
        raise ValueError("no such account")

    async with app.opened() as client:
        async with running(app):
            job = await call.enqueue(account="acme")
            with pytest.raises(JobFailed):
                await job.result(10)
        operator = await app.operator()
        again = await operator.dead_letters.reprocess(job.id, payload={"account": "zeta"})

        record = await client.store.queries.job(again.new_job_id)

    assert record is not None and record.options is not None
    assert record.options["limits"] == {"call:concurrency": "zeta"}


async def test_a_limit_whose_key_is_the_result_of_another_job_is_refused(app: Dutiful) -> None:
    """All such jobs would share a limit, beside those of the accounts."""

    @app.job
    async def find() -> str:
        return "acme"

    @app.job(concurrency=Concurrency(1, key="account"))
    async def call(account: str, page: int = 0) -> None: ...

    with pytest.raises(UsageError, match="limit call:concurrency is the field 'account', which is to be the result"):
        await chain(find.call(), call.call(PREVIOUS)).enqueue()
    assert (await (await app.client()).store.queries.jobs(JobFilter())).jobs == []


def test_a_limit_that_cannot_be_kept_is_refused_with_its_remedy(tmp_path: Path) -> None:
    app = Dutiful(f"sqlite:///{tmp_path / 'jobs.db'}")

    async def call(account: str) -> None: ...

    refused: list[tuple[dict[str, Any], str]] = [
        ({"concurrency": 5}, r"concurrency 5 must be a Concurrency, as in Concurrency\(limit=5\)"),
        ({"concurrency": Concurrency(0)}, r"concurrency.limit 0 must be a whole number from 1"),
        ({"concurrency": Concurrency(2**31)}, r"concurrency.limit 2147483648 must be .* from 1 to 2,147,483,647$"),
        ({"concurrency": Concurrency(1, key=7)}, r"concurrency.key"),  # type: ignore[arg-type]
        (
            {"concurrency": Concurrency(1, key="acount")},
            r"'acount' of its limit call:concurrency is no field .*: account;",
        ),
        ({"rate": RateLimit(1, per="0s")}, r"rate.per '0s' must be between 10 milliseconds and 366 days"),
        ({"rate": RateLimit(1, per="1s", burst=2)}, r"rate.burst 2 must be a whole number from 1 to 1, its limit"),
        ({"rate": RateLimit(1, per="1s", window="hourly")}, "rate.window 'hourly' must be"),  # type: ignore[arg-type]
        ({"rate": [RateLimit(1, per="1s"), RateLimit(9, per="1m")]}, r"two limits .*: give each a name of its own"),
    ]
    for options, message in refused:
        with pytest.raises(UsageError, match=message):
            app.job(**options)(call)
    app.job(name="one", concurrency=Concurrency(1, name="shared"))(call)
    with pytest.raises(UsageError, match="another kind declares the limit 'shared' with other numbers"):
        app.job(name="two", concurrency=Concurrency(2, name="shared"))(call)


@pytest.mark.parametrize("batch", [True, False])
async def test_a_worker_does_not_start_with_a_limit_whose_key_is_no_field(tmp_path: Path, batch: bool) -> None:
    """The fields of pipelines and batches are known when a worker starts."""
    app = Dutiful(f"sqlite:///{tmp_path / 'jobs.db'}")
    limit = Concurrency(1, key="acount")
    if batch:

        @app.job(batch=10, concurrency=limit)
        async def calls(jobs: list[Account]) -> None: ...
    else:
        pipe = app.pipeline("calls", concurrency=limit)

        @pipe.phase
        async def only(account: str) -> None: ...

    async with app:
        with pytest.raises(UsageError, match=r"'acount' of its limit calls:concurrency is no field .*: account;"):
            app.make_worker(await app.client())


@pytest.mark.parametrize("key", ["raise", "number", "long"])
async def test_a_key_that_is_no_text_stores_nothing(app: Dutiful, key: str) -> None:
    def key_of(account: str) -> Any:
        return 1 / 0 if key == "raise" else 7 if key == "number" else "x" * 201

    @app.job(name="call", concurrency=Concurrency(1, key=key_of))
    async def call(account: str) -> None: ...

    with pytest.raises(PayloadInvalid, match="call: the key of limit call:concurrency"):
        await call.enqueue(account="acme")
    assert (await (await app.client()).store.queries.jobs(JobFilter())).jobs == []


async def test_a_limit_holds_while_workers_are_killed(store: Store, tmp_path: Path) -> None:
    app = limit_jobs.app
    app.configure(database_url=address(store))
    async with (
        app,
        Fleet("limit_jobs:app", address(store), folder=tmp_path, path=Path(__file__).parent) as fleet,
    ):
        doomed = await fleet.doomed(store)
        workers = [await fleet.start(*doomed).ready(store) for _ in range(2)]
        accounts = ("acme", "zeta")
        jobs = await limit_jobs.call.enqueue_many({"account": accounts[n % 2]} for n in range(60))

        async def busy() -> WorkerProcess | None:
            return next(iter([worker for worker in workers if await store.claims.held_by(worker.id)]), None)

        victim = await until(busy, "a worker runs a job")
        assert victim is not None
        victim.kill()
        fleet.start("--lease", "2s")
        await until(lambda: all_done(store, jobs), "all jobs have ended")

        for first in range(2):
            runs = [span for job in jobs[first::2] for span in await spans(store, job.id)]
            assert most_at_once(runs) == 2, sorted(runs)

        async def no_slot_is_left() -> bool:
            await store.limits.admit(100, everywhere=True)
            return all(limit.used == 0 for limit in await store.limits.all())

        await eventually(no_slot_is_left)
        assert await store.queries.check_places() == []


async def test_a_job_that_follows_another_of_its_key_costs_one_admission_and_no_peek(
    app: Dutiful, leader_sleeps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker took its own hint for one of others, and looked again, twice, for each job."""
    done: list[int] = []

    @app.job(concurrency=Concurrency(1))
    async def call(number: int) -> None:
        done.append(number)

    async with running(app) as worker:
        maintenance = worker._maintenance
        assert maintenance is not None
        await eventually(lambda: asyncio.sleep(0, maintenance.leading))
        calls: Counter[str] = Counter()
        store = worker._config.store
        for subject, name in ((store.limits, "admit"), (store.claims, "peek")):
            monkeypatch.setattr(subject, name, counted(calls, name, getattr(subject, name)))
        jobs = await call.enqueue_many({"number": number} for number in range(30))
        await asyncio.gather(*(job.result(60) for job in jobs))
    assert done == list(range(30))
    assert 30 <= calls["admit"] <= 35
    assert calls["peek"] <= 5


def counted(calls: Counter[str], name: str, call: Any) -> Any:
    async def counting(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return await call(*args, **kwargs)

    return counting
