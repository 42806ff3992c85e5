"""`demo`: a mixed workload on a temporary SQLite file, shown live."""

import asyncio
import logging
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dutiful.app import Dutiful
from dutiful.client.client import Client
from dutiful.core.errors import DutifulError
from dutiful.core.states import FINAL, State
from dutiful.kind import Handle
from dutiful.store.queries import JobFilter

DEADLINE = 60.0
BAR = 6
LABELS = {
    "greet": "fast, in its own lane",
    "crawl": "slow",
    "unsteady": "fails, and is retried",
    "hopeless": "fails permanently",
    "write_file": "blocking: a thread",
    "count_primes": "CPU work: a process",
    "remind": "scheduled",
    "endless": "cancelled meanwhile",
}
Counts = dict[str, dict[str, int]]


def register(cli: typer.Typer) -> None:
    cli.command()(demo)


def demo() -> None:
    """Run real jobs of every sort on a temporary SQLite file, and show their progress."""
    logging.getLogger("dutiful").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="dutiful-demo-") as folder:
        adds_up = asyncio.run(_run(Path(folder) / "demo.db"))
    raise typer.Exit(0 if adds_up else 1)


async def _run(path: Path) -> bool:
    from dutiful.cli.demo_jobs import app

    app.configure(database_url=f"sqlite:///{path}")
    console = Console()
    console.print(f"[bold]Dutiful[/bold] on SQLite, one file: {path}\n")
    async with app:
        client = await app.client()
        worker = app.make_worker(client)
        working = asyncio.create_task(worker.run())
        began = time.monotonic()
        expected, cancelled = await _enqueue(app, client)
        counted: Counts = {}
        with Live(console=console, refresh_per_second=8, transient=not console.is_terminal) as live:
            while time.monotonic() - began < DEADLINE:
                counted = await _count(client)
                live.update(_table(counted, expected))
                ended = sum(n for states in counted.values() for state, n in states.items() if state in FINAL)
                if ended == sum(expected.values()):
                    break
                await asyncio.sleep(0.12)
        worker.stop()
        await working
        if not console.is_terminal:
            console.print(_table(counted, expected))
        violations = await client.store.queries.check_places()
    return _summary(console, counted, expected, cancelled, violations, time.monotonic() - began)


async def _enqueue(app: Dutiful, client: Client) -> tuple[dict[str, int], int]:
    """Enqueues jobs of all kinds; returns how many of each, and how many will be cancelled."""
    plan: dict[str, list[dict[str, Any]]] = {
        "greet": [{"name": f"number {n}"} for n in range(200)],
        "crawl": [{"page": n} for n in range(12)],
        "unsteady": [{"number": n} for n in range(9)],
        "hopeless": [{"order": n} for n in range(2)],
        "write_file": [{"size": n} for n in range(6)],
        "count_primes": [{"below": 120_000 + n} for n in range(3)],
    }
    for kind, payloads in plan.items():
        await app.kind(kind).enqueue_many(payloads)
    for seconds in (2, 3, 4):
        await app.kind("remind").options(delay=seconds).enqueue(note=f"after {seconds} s")
    endless = [await app.kind("endless").enqueue() for _ in range(3)]
    asyncio.get_running_loop().call_later(3, _cancel_all, endless)
    expected = {kind: len(payloads) for kind, payloads in plan.items()} | {"remind": 3, "endless": len(endless)}
    return expected, len(endless)


_cancelling: set["asyncio.Task[None]"] = set()


def _cancel_all(jobs: list[Handle[Any]]) -> None:
    async def go() -> None:
        for job in jobs:
            with suppress(DutifulError):
                await job.cancel("shown by the demo")

    _cancelling.add(asyncio.create_task(go()))


async def _count(client: Client) -> Counts:
    counted: Counts = {}
    for record in await client.store.queries.jobs(JobFilter(limit=1_000)):
        states = counted.setdefault(record.kind, {})
        states[record.state] = states.get(record.state, 0) + 1
        states["retries"] = states.get("retries", 0) + max(0, record.attempt - 1)
    return counted


def _table(counted: Counts, expected: dict[str, int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    # In a narrow terminal, only the notes are cut, because they matter least.
    most = len(f"{max(expected.values())}")
    table.add_column("kind", no_wrap=True, min_width=max(map(len, LABELS)))
    table.add_column("what it shows", no_wrap=True, min_width=max(map(len, LABELS.values())), style="dim")
    table.add_column("progress", no_wrap=True, min_width=BAR + 2 + 2 * most)
    table.add_column("", no_wrap=True)
    for kind, total in expected.items():
        states = counted.get(kind, {})
        done = sum(states.get(state, 0) for state in FINAL)
        full = round(BAR * done / total)
        bar = f"[green]{'█' * full}[/green][dim]{'░' * (BAR - full)}[/dim] {done}/{total}"
        table.add_row(kind, LABELS[kind], bar, _notes(states))
    return table


def _notes(states: dict[str, int]) -> str:
    notes = [
        (states.get(State.RUNNING, 0), "running", "cyan"),
        (states.get(State.SCHEDULED, 0), "scheduled", "yellow"),
        (states.get("retries", 0), "retries", "yellow"),
        (states.get(State.FAILED, 0), "dead letters", "red"),
        (states.get(State.CANCELLED, 0), "cancelled", "magenta"),
    ]
    return ", ".join(f"[{colour}]{count} {name}[/{colour}]" for count, name, colour in notes if count)


def _summary(
    console: Console, counted: Counts, expected: dict[str, int], cancelled: int, violations: list[str], took: float
) -> bool:
    """Prints the result; returns whether it is the expected one."""
    counts = {state: sum(states.get(state, 0) for states in counted.values()) for state in sorted(FINAL)}
    total = sum(expected.values())
    said = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in counts.items() if count)
    adds_up = (
        sum(counts.values()) == total
        and counts[State.FAILED] == expected["hopeless"]
        and counts[State.CANCELLED] == cancelled
        and not violations
    )
    console.print(f"\n{total} jobs in {took:.1f} s: {said}.")
    if adds_up:
        console.print(
            "Every job is stored in exactly one place, and the numbers add up. Next: [bold]dutiful init[/bold]"
        )
    else:
        console.print("[red]The numbers do not add up:[/red]", *violations, counted)
    return adds_up


__all__ = ["register"]
