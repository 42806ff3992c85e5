"""A worker with nothing to do asks little of Postgres."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from running_workers import eventually

from dutiful import Dutiful

WINDOW, WINDOWS = 2.5, 16


@pytest.fixture
def worker(pg18_url: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "dutiful.cli", "worker", "process_jobs:app", "--log-level", "warning"],
        cwd=Path(__file__).parent,
        env={**os.environ, "DUTIFUL_DATABASE_URL": pg18_url},
    )
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


async def test_an_idle_worker_makes_few_statements_on_few_connections(
    worker: "subprocess.Popen[bytes]", pg18_url: str
) -> None:
    base, _, database = pg18_url.rpartition("/")
    async with Dutiful(pg18_url) as app:
        store = (await app.client()).store

        async def leads() -> bool:
            return any(record.pid == worker.pid and record.leading for record in await store.workers.all())

        await eventually(leads)
    # From another database, so that the onlooker's own statements are not counted.
    with psycopg.connect(f"{base}/postgres", autocommit=True) as onlooker:

        def look() -> tuple[int, int]:
            """Transactions so far, and connections now."""
            row = onlooker.execute(
                "select xact_commit + xact_rollback, (select count(*) from pg_stat_activity where datname = %(name)s"
                " and application_name = 'dutiful') from pg_stat_database where datname = %(name)s",
                {"name": database},
            ).fetchone()
            assert row is not None
            return int(row[0]), int(row[1])

        for _ in range(WINDOWS):  # an autovacuum, or what the worker did to start, may fall into one
            (before, _), began, connections = look(), time.monotonic(), []
            while time.monotonic() - began < WINDOW:
                connections.append(look()[1])
                await asyncio.sleep(0.2)
            made, spent = look()[0] - before, time.monotonic() - began
            # Connections of its start are closed when they have been idle for a while.
            if 1 <= made <= 2 * spent and 1 <= max(connections) <= 4:
                break
        else:
            pytest.fail(f"{made} statements in {spent:.1f} s on up to {max(connections)} connections")
