"""Sends that supervisors in SQL own, beside the same sends as jobs in Python that record the same facts."""

from __future__ import annotations

import dataclasses
import sys
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg

from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import DEFAULT_LANE, Peer
from benchmarks.peers.dutiful_peer import DutifulPeer, make_app
from benchmarks.run_counter import RunCounter
from benchmarks.scenario import RATIO, Metric, Scenario
from dutiful import Context, Dutiful
from dutiful.channels import Channels
from dutiful.channels.sql_worker import SqlWorkerConfig
from dutiful.factory import make_sql_worker
from dutiful.settings import Settings
from dutiful.stores.postgres.supervisor_migration import migration
from dutiful.stores.postgres.supervisor_plan import plan

PROCESS, CHANNEL, KIND = "bench.send", "push", "send"
_CONCURRENCY = 50
_BULK = 500
_BEFORE = """
    create or replace function bench.get_send_payload(_payload jsonb) returns jsonb
    language sql security definer set search_path = pg_catalog, pg_temp as $$
        select jsonb_build_object('status', 'succeeded', 'payload', jsonb_build_object('number', t.number))
        from bench.send_attempt a join bench.send_task t using (send_task_id)
        where a.send_attempt_id = (_payload ->> 'send_attempt_id')::bigint
    $$
"""


async def supervised(bench: Bench, peer: Peer) -> Metrics:
    sends = bench.sizes.supervised_sends
    by_sql = await _by_sql(bench, peer, sends)
    by_python = await _by_python(bench, peer, sends)
    return {"sql_sends_per_s": by_sql, "python_sends_per_s": by_python, "ratio": by_sql / by_python}


async def _by_sql(bench: Bench, peer: Peer, sends: int) -> float:
    """Each send is a check by the supervisor, an attempt with three handlers, and a check that is scheduled."""
    async with bench.database(peer) as url:
        await _install(url)
        connection = await asyncpg.connect(url)
        try:
            for first in range(1, sends + 1, _BULK):
                await connection.execute(
                    "select bench.kickoff_send(n) from generate_series($1::bigint, $2) n",
                    first,
                    min(first + _BULK - 1, sends),
                )
        finally:
            await connection.close()
        return await _rate(bench, peer, url, sends)


async def _by_python(bench: Bench, peer: Peer, sends: int) -> float:
    """Each send is one job, whose attempt and success are recorded in its own transaction."""
    async with bench.database(peer) as url:
        await _install(url)
        async with sending_app(url) as app:
            for first in range(1, sends + 1, _BULK):
                numbers = range(first, min(first + _BULK, sends + 1))
                await app.kind(KIND).enqueue_many([{"number": number} for number in numbers])
        return await _rate(bench, peer, url, sends, "python")


async def _install(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        role = await connection.fetchval("select current_user")
        planned = plan(PROCESS, channel=CHANNEL, keys=["number:bigint"], base=timedelta(hours=1), worker_role=role)
        async with connection.transaction():
            await connection.execute(migration(planned))
            await connection.execute(_BEFORE)
    finally:
        await connection.close()


async def _rate(bench: Bench, peer: Peer, url: str, sends: int, *options: str) -> float:
    assert isinstance(peer, DutifulPeer)
    bench.analyze(peer, url)
    with bench.workers(dataclasses.replace(peer, worker=(__name__, *options)), url) as crew:
        await crew.reach(sends)
        return crew.rate()


def sending_app(url: str, counter: RunCounter | None = None) -> Dutiful:
    app = make_app(url)

    @app.job(name=KIND, queue=DEFAULT_LANE.queue)
    async def send(ctx: Context, number: int) -> None:
        if counter is not None:
            counter.hit(0.0)
        async with ctx.transaction() as tx:
            await tx.execute(
                "with t as (insert into bench.send_task (number) values ($1) returning send_task_id), "
                "a as (insert into bench.send_attempt (send_task_id, job_id) select send_task_id, $2 from t "
                "returning send_attempt_id) "
                "insert into bench.send_attempt_succeeded (send_attempt_id) select send_attempt_id from a",
                number,
                ctx.job_id,
            )

    return app


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    await (_work_in_python if sys.argv[5:] == ["python"] else _work_in_sql)(url, counter)


async def _work_in_sql(url: str, counter: RunCounter) -> None:
    channels = Channels()

    @channels.channel(CHANNEL)
    async def push(request: dict[str, Any]) -> None:
        counter.hit(0.0)

    config = SqlWorkerConfig(
        worker_id=uuid4(),
        concurrency=_CONCURRENCY,
        lease=timedelta(minutes=5),
        grace=timedelta(0),
        poll=timedelta(seconds=2),
    )
    await make_sql_worker(Settings(database_url=url), channels, config).run()


async def _work_in_python(url: str, counter: RunCounter) -> None:
    app = sending_app(url, counter)
    async with app.opened() as client:
        await app.make_worker(client).run()


def _seconds(sizes: Sizes) -> float:
    return 8 + sizes.supervised_sends / 200


SUPERVISED_SCENARIOS = (
    Scenario(
        "supervised",
        "Sends owned by a supervisor in SQL, and as jobs in Python",
        supervised,
        (Metric("sql_sends_per_s", "sends/s by SQL"), Metric("python_sends_per_s", "by Python"), RATIO),
        _seconds,
    ),
)
