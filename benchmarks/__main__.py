"""Run the benchmarks: `python -m benchmarks --quick`, `--only drain1,latency`, `--peers dutiful,raw`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import uvloop
from rich.console import Console

from benchmarks import peers as registry
from benchmarks.costs import server_meter
from benchmarks.harness import SERVER_SETTINGS, Bench, Sizes
from benchmarks.peer import Peer
from benchmarks.readme_table import PEERS, PIN_S, TABLE, readme_table
from benchmarks.report import RESULTS, Sample, machine_facts, save, show
from benchmarks.scenario import Scenario
from benchmarks.scenarios import SCENARIOS
from servers import PostgresServer

_QUIET_LOAD = 0.5


def main() -> int:
    options = _options()
    console = Console()
    sizes = Sizes.quick() if options.quick else Sizes()
    if options.scale:
        sizes = dataclasses.replace(sizes, drain_scale=options.scale)
    if options.pin_seconds:
        sizes = dataclasses.replace(sizes, pin_s=options.pin_seconds)
    repeats = 1 if options.quick else options.repeats
    peers = _peers(console, options.peers)
    runs = _runs(options.only, peers, repeats)
    took = sum(scenario.seconds(sizes) for scenario, _, _ in runs)
    console.print(f"{len(runs)} runs, about {_minutes(took)} in all", highlight=False)
    samples: list[Sample] = []
    failures: list[str] = []
    began, load = datetime.now(UTC), os.getloadavg()[0]
    if load > _QUIET_LOAD:
        console.print(f"The machine is busy (load {load:.1f}): figures will be low and noisy", style="yellow")
    with (
        PostgresServer(options.postgres, settings=SERVER_SETTINGS) as server,
        server_meter(server.dsn()) as meter,
        tempfile.TemporaryDirectory(prefix="dutiful-bench-") as directory,
    ):
        bench = Bench(server, meter, Path(directory), sizes)
        # Before all else, because an early end also ends the server.
        facts = machine_facts(server, peers, sizes, load)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_run(console, bench, runs, samples, failures))
        except KeyboardInterrupt:
            failures.append(f"ended early, after {len(samples) + len(failures)} of {len(runs)} runs")
    took = (datetime.now(UTC) - began).total_seconds()
    facts |= {"began": began.isoformat(), "took_s": took, "options": sys.argv[1:]}
    show(console, options.only, samples)
    console.print(f"{facts['cpu']}, {facts['cores']} cores, Postgres {facts['postgres']}, Python {facts['python']}")
    console.print(f"It took {_minutes(took)}", highlight=False)
    path = save(facts, samples, failures, options.results)
    console.print(f"Written to {path}")
    if options.table:
        path.with_suffix(".md").write_text(readme_table(samples) + "\n")
        console.print(f"README's table: {path.with_suffix('.md')}")
    for failure in failures:
        console.print(f"failed: {failure}", style="red", markup=False, soft_wrap=True)
    return 1 if failures else 0


Run = tuple[Scenario, int, Peer]


def _runs(scenarios: Sequence[Scenario], peers: Sequence[Peer], repeats: int) -> list[Run]:
    """Interleaved and rotated, so that no system always runs first or last."""
    runs: list[Run] = []
    for scenario in scenarios:
        entrants = [peer for peer in peers if scenario.name in peer.scenarios]
        for repeat in range(scenario.repeats or repeats):
            shift = repeat % max(len(entrants), 1)
            runs += [(scenario, repeat, peer) for peer in entrants[shift:] + entrants[:shift]]
    return runs


async def _run(console: Console, bench: Bench, runs: Sequence[Run], samples: list[Sample], failures: list[str]) -> None:
    """Adds to `samples` and `failures` after each run, so that nothing is lost if it is ended early."""
    for scenario, repeat, peer in runs:
        run = f"{scenario.name} {repeat + 1} {peer.name}"
        start = time.monotonic()
        try:
            metrics = await scenario.run(bench, peer)
        except Exception as error:
            failures.append(f"{run}: {type(error).__name__}: {error}")
            console.print(failures[-1], style="red", markup=False, soft_wrap=True)
            continue
        samples.append(Sample(scenario.name, peer.name, peer.store, repeat, metrics, time.monotonic() - start))
        figures = ", ".join(f"{key} {value:,.2f}" for key, value in metrics.items())
        console.print(f"{run}: {figures}", highlight=False, soft_wrap=True)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    default = tuple(scenario for scenario in SCENARIOS if scenario.by_default)
    parser.add_argument("--quick", action="store_true", help="small sizes, once: proves that everything runs")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each system, of which the median counts")
    parser.add_argument("--only", type=_scenarios, default=default, metavar="A,B", help=f"of {names}")
    parser.add_argument("--peers", type=_names, default=registry.NAMES, metavar="A,B", help=", ".join(registry.NAMES))
    parser.add_argument("--postgres", type=int, default=18, help="server version, 18 or 16")
    parser.add_argument("--scale", type=float, help="how many jobs a drain has, of the default")
    parser.add_argument("--pin-seconds", type=float, help="how long the snapshot is held, 120 by default")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the JSON files")
    parser.add_argument("--table", action="store_true", help="README's table, in Markdown, in less than half an hour")
    options = parser.parse_args()
    if options.table:
        options.only, options.peers = _scenarios(",".join(TABLE)), _names(",".join(PEERS))
        options.pin_seconds = options.pin_seconds or PIN_S
    return options


def _scenarios(text: str) -> tuple[Scenario, ...]:
    wanted = text.split(",")
    if unknown := set(wanted) - {scenario.name for scenario in SCENARIOS}:
        raise argparse.ArgumentTypeError(f"no such scenario: {', '.join(sorted(unknown))}")
    return tuple(scenario for scenario in SCENARIOS if scenario.name in wanted)


def _names(text: str) -> tuple[str, ...]:
    wanted = text.split(",")
    if unknown := set(wanted) - set(registry.NAMES):
        raise argparse.ArgumentTypeError(f"no such peer: {', '.join(sorted(unknown))}")
    return tuple(name for name in registry.NAMES if name in wanted)


def _peers(console: Console, names: Sequence[str]) -> list[Peer]:
    found: list[Peer] = []
    for name in names:
        match registry.load(name):
            case str(reason):
                console.print(f"{name} does not take part: {reason}", style="yellow", markup=False, soft_wrap=True)
            case peer:
                found.append(peer)
    return found


if __name__ == "__main__":
    sys.exit(main())
