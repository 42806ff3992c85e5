"""Jobs by the published SQL functions, one at a time, beside commits of one row, pgbench's own scripts and a worker in
Python.

pgbench makes all calls over one connection, in short runs that take turns. Rates are those of median transactions,
because a commit waits for the disk, which others may use meanwhile. The CPU includes the start of each session.

A commit of one row is the strictest measure of what the server commits: one statement, no index. `tpcb-like`, which
pgbench runs if it is told nothing, updates three rows and inserts one, by five statements between begin and end;
`simple-update` leaves out two of the updates.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from benchmarks.costs import read
from benchmarks.harness import Bench, BenchmarkError, Metrics, Sizes
from benchmarks.peer import DEFAULT_LANE, Peer
from benchmarks.scenario import Metric, Scenario

_CALLS = 400  # of a run of pgbench
_BUILTIN = {"simple": "simple-update", "tpcb": "tpcb-like"}  # scripts of pgbench's own
_DEQUEUE = f"select job_id, claim_id from dutiful.dequeue(array['{DEFAULT_LANE.kind}']) \\gset\n"
_SCRIPTS = {
    "commit": "insert into public.row (n) values (1);\n",
    "dequeue": _DEQUEUE,
    "pair": _DEQUEUE + "select dutiful.complete_job(:job_id, :claim_id);\n",
}


@dataclass(slots=True)
class _Runs:
    """What the transactions of one script took, and the server's CPU for all of them."""

    microseconds: list[int] = field(default_factory=list)
    server_s: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.microseconds)

    @property
    def cpu_us(self) -> float:
        return self.server_s * 1e6 / len(self.microseconds)


async def sql_door(bench: Bench, peer: Peer) -> Metrics:
    rounds = bench.sizes.door_rounds
    runs = {name: _Runs() for name in (*_SCRIPTS, *_BUILTIN)}
    async with bench.database(peer) as url:
        connection = await asyncpg.connect(url)
        await connection.execute("create table public.row (n int)")
        await connection.close()
        await bench.preload(peer, url, 2 * rounds * _CALLS)
        _pgbench(bench, "--initialize", "--quiet", url)
        with tempfile.TemporaryDirectory(dir=bench.directory) as folder:
            for _ in range(rounds):
                for name, run in runs.items():
                    _run(bench, url, Path(folder), name, run)
    commit, dequeue, pair, simple, tpcb = runs.values()
    drained = await bench.drain(peer, bench.drain_jobs(peer))
    return {
        "commits_per_s": 1e6 / commit.median,
        "dequeue_ratio": commit.median / dequeue.median,
        "pair_ratio": 2 * commit.median / pair.median,
        "simple_update_ratio": simple.median / dequeue.median,
        "tpcb_ratio": tpcb.median / dequeue.median,
        "sql_jobs_per_s": 1e6 / pair.median,
        "commit_server_us": commit.cpu_us,
        "dequeue_server_us": dequeue.cpu_us,
        "pair_server_us": pair.cpu_us,
        "simple_update_server_us": simple.cpu_us,
        "tpcb_server_us": tpcb.cpu_us,
        "python_jobs_per_s": drained["jobs_per_s"],
    }


def _run(bench: Bench, url: str, folder: Path, name: str, run: _Runs) -> None:
    if name in _BUILTIN:
        script = f"--builtin={_BUILTIN[name]}"
    else:
        path = folder / f"{name}.sql"
        path.write_text(_SCRIPTS[name])
        script = f"--file={path}"
    since = read(bench.meter)
    _pgbench(
        bench, "--no-vacuum", "--client=1", "--protocol=prepared", f"--transactions={_CALLS}", "--log",
        f"--log-prefix={folder / name}", script, url,
    )  # fmt: skip
    run.server_s += read(bench.meter).server_s - since.server_s
    for path in folder.glob(f"{name}.[0-9]*"):
        # client, transaction, microseconds, …
        run.microseconds += [int(line.split()[2]) for line in path.read_text().splitlines()]
        path.unlink()


def _pgbench(bench: Bench, *options: str) -> None:
    done = subprocess.run([bench.server.program("pgbench"), *options], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"pgbench failed: {done.stderr[-500:]}")


def _seconds(sizes: Sizes) -> float:
    return 15 + 2 * sizes.door_rounds


SQL_DOOR_SCENARIOS = (
    Scenario(
        "sql-door",
        "Jobs by SQL functions, one at a time over one connection",
        sql_door,
        (
            Metric("commits_per_s", "commits/s of one row"),
            Metric("dequeue_ratio", "dequeues, of that"),
            Metric("pair_ratio", "dequeues and completions, of that"),
            Metric("simple_update_ratio", "dequeues, of pgbench's simple-update"),
            Metric("tpcb_ratio", "of pgbench's default script, tpcb-like"),
            Metric("sql_jobs_per_s", "jobs/s"),
            Metric("commit_server_us", "server CPU µs of a commit", higher_is_better=False),
            Metric("dequeue_server_us", "of a dequeue", higher_is_better=False),
            Metric("pair_server_us", "of a job", higher_is_better=False),
            Metric("simple_update_server_us", "of simple-update", higher_is_better=False),
            Metric("tpcb_server_us", "of tpcb-like", higher_is_better=False),
            Metric("python_jobs_per_s", "jobs/s of a worker in Python"),
        ),
        _seconds,
    ),
)
