"""Reports of benchmarks: tables that fit 80 columns, and results from which all else can be made."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import peers
from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import Peer
from benchmarks.readme_table import readme_table
from benchmarks.report import Sample, save, show
from benchmarks.scenario import Metric, Scenario
from benchmarks.scenarios import SCENARIOS


async def never(bench: Bench, peer: Peer) -> Metrics:
    raise AssertionError("it is only shown")


def scenario_of(count: int) -> Scenario:
    metrics = tuple(Metric(f"m{number}", f"figure number {number}") for number in range(count))
    return Scenario("some", "A measurement", never, metrics, lambda sizes: 1.0)


def sample(peer: str, *figures: float, repeat: int = 0) -> Sample:
    metrics = {f"m{number}": figure for number, figure in enumerate(figures)}
    return Sample("some", peer, "postgres", repeat, metrics, 1.0)


def shown(scenario: Scenario, *samples: Sample) -> list[list[str]]:
    """The cells of each line, as an 80-column terminal shows them."""
    console = Console(file=io.StringIO(), width=80)
    show(console, [scenario], samples)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().replace("┃", "│").splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]


def test_a_scenario_of_few_metrics_has_a_row_a_system() -> None:
    rows = shown(scenario_of(2), sample("dutiful", 30, 1), sample("raw", 20, 2))
    assert rows[0] == ["system", "figure number 0", "figure number 1", "dutiful is better by"]
    assert rows[1:] == [["dutiful", "30.00", "1.00", ""], ["raw", "20.00", "2.00", "1.50x"]]


def test_a_system_that_ended_no_job_is_shown_without_a_comparison() -> None:
    rows = shown(scenario_of(2), sample("dutiful", 30, 1), sample("raw", 0, 2))
    assert rows[2] == ["raw", "0.00", "2.00", ""]


def test_a_scenario_of_many_metrics_has_a_row_a_metric() -> None:
    rows = shown(scenario_of(20), sample("dutiful", *range(30, 50)), sample("raw", *range(20, 40)))
    assert rows[:2] == [["metric", "dutiful", "raw"], ["figure number 0", "30.00", "20.00"]]
    assert rows[20:] == [["figure number 19", "49.00", "39.00"], ["dutiful is better by", "", "1.50x"]]


def test_many_systems_of_many_metrics_have_several_tables() -> None:
    names = ["dutiful", "raw", *(f"another-system-{number}" for number in range(6))]
    rows = shown(scenario_of(9), *(sample(name, *range(number + 1, number + 10)) for number, name in enumerate(names)))
    found = [row for row in rows if row[0] == "raw"]
    assert [cell for row in found for cell in row[1:-1]] == [f"{n}.00" for n in range(2, 11)]


def test_each_figure_is_compared_with_the_best_peer_that_promises_the_same() -> None:
    higher, lower = Metric("m0", "rate"), Metric("m1", "cost", higher_is_better=False)
    scenario = Scenario("some", "A measurement", never, (higher, lower), lambda sizes: 1.0)
    rows = shown(scenario, sample("dutiful", 30, 1), sample("raw", 90, 0.5), sample("x", 20, 2), sample("y", 10, 1.5))
    assert rows[-2:] == [
        ["some", "rate", "30.00", "20.00", "x", "1.50"],
        ["some", "cost", "1.00", "1.50", "y", "0.67"],
    ]


def test_a_file_of_results_has_every_ratio_and_how_far_it_moved(tmp_path: Path) -> None:
    runs = [(30, 20), (40, 20), (60, 20)]
    samples = [
        one
        for repeat, (ours, theirs) in enumerate(runs)
        for one in (sample("dutiful", ours, repeat=repeat), sample("raw", theirs, repeat=repeat))
    ]
    saved = json.loads(save({}, samples, [], tmp_path).read_text())
    assert saved["ratios"] == {"some": {"raw": {"m0": {"of_medians": 2.0, "least": 1.5, "most": 3.0}}}}


@pytest.mark.parametrize("name", peers.NAMES)
def test_a_system_takes_part_in_scenarios_that_there_are(name: str) -> None:
    peer = peers.load(name)
    if isinstance(peer, str):
        pytest.skip(f"installed for benchmarks only: {peer}")
    assert peer.scenarios <= {scenario.name for scenario in SCENARIOS}


def test_dutiful_takes_part_in_every_scenario_and_each_says_how_long_it_takes() -> None:
    peer = peers.load("dutiful")
    assert not isinstance(peer, str)
    assert peer.scenarios == {scenario.name for scenario in SCENARIOS}
    for scenario in SCENARIOS:
        assert 0 < scenario.seconds(Sizes.quick()) < scenario.seconds(Sizes()), scenario.name


def test_readmes_table_has_the_medians_of_those_that_took_part() -> None:
    drain = [
        {"jobs_per_s": rate, "memory_mb": 46.7, "client_us_per_job": 10.4, "server_us_per_job": 12.1}
        for rate in (65_049.0, 1.0, 70_000.0)
    ]
    samples = [Sample("drain1", "dutiful", "postgres", repeat, metrics, 1.0) for repeat, metrics in enumerate(drain)]
    samples += [
        Sample("drain1", "oban", "postgres", 0, {"jobs_per_s": 4_204.0}, 1.0),
        Sample("latency", "oban", "postgres", 0, {"p50_ms": 2.31, "p99_ms": 3.6}, 1.0),
        Sample("enqueue-single", "huey-full", "sqlite", 0, {"jobs_per_s": 5_144.0}, 1.0),
    ]
    assert readme_table(samples).splitlines() == [
        "| | Dutiful | oban |",
        "|---|---|---|",
        "| drain, one worker process, jobs/s | 65,000 | 4,200 |",
        "| CPU a job in a drain, worker / server, µs | 10 / 12 | - |",
        "| from enqueue to handler, idle worker, p50 / p99, ms | - | 2.3 / 3.6 |",
        "| memory of a worker in a drain, MB | 47 | - |",
        "",
        "| | Huey on SQLite |",
        "|---|---|",
        "| enqueue one at a time, jobs/s | 5,140 |",
    ]
