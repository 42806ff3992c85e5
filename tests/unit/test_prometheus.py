"""The page of metrics, as the official parsers read it, in both formats."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric, parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from dutiful.core.metrics.sketch import Sketch, bucket
from dutiful.core.states import State
from dutiful.observe.measure import FleetSnapshot
from dutiful.observe.prometheus import Page, family, histogram, openmetrics, page, prefers_openmetrics, text
from dutiful.store.metrics import AttemptStats, Depth, Gauges, summed

Reads = Callable[[str], Iterable[Metric]]
read_text: Reads = parser.text_string_to_metric_families
read_openmetrics: Reads = openmetrics_parser.text_string_to_metric_families
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8) | st.sampled_from(
    ['"', "\\", "\\n", "a\nb", 'x="y"', "{}", ",", "#", "\\\\n"]
)
sketches = st.dictionaries(st.integers(0, 160), st.integers(1, 10**9), max_size=6)


@st.composite
def stats(draw: st.DrawFn) -> AttemptStats:
    return AttemptStats(
        kind=draw(words),
        outcome=draw(st.sampled_from(["completed", "failed", "retried"])),
        count=draw(st.integers(1, 10**12)),
        run=draw(sketches),
        wait=draw(sketches),
        run_microseconds=draw(st.integers(0, 10**16)),
        wait_microseconds=draw(st.integers(0, 10**16)),
        payload_bytes=draw(st.integers(0, 10**12)),
    )


def seen(lately: Iterable[AttemptStats] = (), depths: Iterable[Depth] = ()) -> FleetSnapshot:
    nothing = Gauges(due_since={}, dead_letters=0, stuck=0)
    return FleetSnapshot(
        at=datetime.now(UTC), depths=list(depths), attempts=list(lately), workers=[], breakers=[], gauges=nothing,
        pauses=[],
    )  # fmt: skip


def read(families: Iterable[Metric]) -> Samples:
    return {(sample.name, frozenset(sample.labels.items())): sample.value for one in families for sample in one.samples}


def both(made: Page) -> Samples:
    """What both formats say, which is the same."""
    plain, modern = read(read_text(made.text.decode())), read(read_openmetrics(made.openmetrics.decode()))
    assert plain == modern
    return plain


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@given(st.lists(stats(), max_size=8), st.lists(st.tuples(words, words), max_size=3))
def test_both_formats_are_read_by_the_official_parsers_and_say_what_was_counted(
    counted: list[AttemptStats], lines: list[tuple[str, str]]
) -> None:
    depths = [Depth(queue=queue, kind=kind, state=State.READY, count=7) for queue, kind in set(lines)]
    totals = summed(counted)

    found = both(page(seen(totals, depths), totals, "1.2.3"))

    assert found[key("dutiful_info", version="1.2.3")] == 1
    for one in totals:
        assert found[key("dutiful_attempts_total", kind=one.kind, outcome=one.outcome)] == one.count
        alike = [other for other in totals if other.kind == one.kind]
        assert found[key("dutiful_run_seconds_sum", kind=one.kind)] == sum(t.run_microseconds for t in alike) / 1e6
        assert found[key("dutiful_wait_seconds_count", kind=one.kind)] == sum(sum(t.wait.values()) for t in alike)
    for queue, kind in lines:
        assert found[key("dutiful_pending", queue=queue, kind=kind)] == 7


@given(st.lists(stats(), min_size=1, max_size=12), st.data())
def test_the_page_is_the_same_however_far_tallies_have_been_folded(
    counted: list[AttemptStats], data: st.DataObject
) -> None:
    rolled_up = data.draw(st.integers(0, len(counted)))
    order = data.draw(st.permutations(counted))

    total = summed(order[:rolled_up])

    assert page(seen(), summed([*total, *order[rolled_up:]]), "1") == page(seen(), summed(counted), "1")


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50))
def test_each_edge_counts_the_times_below_it(times: list[int]) -> None:
    sketch: Sketch = {}
    for time in times:
        sketch[bucket(time)] = sketch.get(bucket(time), 0) + 1
    total = AttemptStats(kind="a", outcome="completed", count=len(times), run=sketch, run_microseconds=sum(times))

    found = both(page(seen(), [total], "1"))

    edges = {
        float(dict(labels)["le"]): value
        for (name, labels), value in found.items()
        if name.endswith("run_seconds_bucket")
    }
    assert edges == {edge: sum(time < edge * 1e6 for time in times) for edge in edges}
    assert len(edges) == 13 and edges[float("inf")] == len(times)


def test_metrics_without_series_are_written_all_the_same() -> None:
    empty = [family("a", "gauge", 'one "word" \\ two\nlines', ["x"], []), histogram("b", "none", "x", ["1.0"], [])]

    assert [one.type for one in read_openmetrics(openmetrics(empty).decode())] == ["gauge", "histogram"]
    assert [one.documentation for one in read_text(text(empty).decode())] == ['one "word" \\ two\nlines', "none"]
    (first, _) = read_openmetrics(openmetrics(empty).decode())
    assert first.documentation == 'one "word" \\ two\nlines'


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text",
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
        "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        "Application/OpenMetrics-Text;Q=0.3, text/plain;q=0.3",
        "application/openmetrics-text;q=0.2, text/plain;q=0.1, */*",
    ],
)
def test_openmetrics_is_chosen_if_it_is_named(accept: str) -> None:
    assert prefers_openmetrics(accept)


@pytest.mark.parametrize(
    "accept",
    [
        "", "*/*", "text/plain", "application/openmetrics-textile", ";;,;=", "text/plain;v",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;q=0.00",
        "application/openmetrics-text; q = 0.000",
        "application/openmetrics-text;q=much",
        "application/openmetrics-text;q=nan",
        "application/openmetrics-text;q=0.1, text/plain;q=0.9",
        "application/openmetrics-text;q=0.1, */*;q=0.9",
    ],
)  # fmt: skip
def test_text_is_chosen_otherwise_and_if_it_is_preferred(accept: str) -> None:
    assert not prefers_openmetrics(accept)
