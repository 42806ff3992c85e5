"""Sketches: any quantile within an eighth, merged by adding."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.metrics.sketch import bucket, cumulative, edge, merged, quantiles
from dutiful.store.metrics import AttemptStats, summed

times = st.integers(0, 10**13)  # microseconds: up to four months
sketches = st.dictionaries(st.integers(0, 160), st.integers(1, 10**6), max_size=20)


@given(times)
def test_a_time_falls_into_the_bucket_whose_edges_are_around_it(time: int) -> None:
    number = bucket(time)

    assert time < edge(number)
    assert number == 0 or time >= edge(number - 1)


@given(st.integers(0, 160))
def test_buckets_follow_each_other_and_are_a_quarter_wide_at_most(number: int) -> None:
    low = edge(number - 1) if number else 0

    assert bucket(edge(number)) == number + 1
    assert edge(number) - low <= max(low / 4, 1)


@pytest.mark.req("L77")
@given(st.lists(st.integers(4, 10**12), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_within_an_eighth_of_the_true_one(made: list[int], share: float) -> None:
    (found,) = quantiles(merged({bucket(time): 1} for time in made), [share])

    true = sorted(made)[math.ceil(share * len(made)) - 1]
    assert found is not None
    assert abs(found * 1e6 - true) <= max(true / 8, 0.5)


@pytest.mark.parametrize("share", [0.5, 0.95, 1.0])
def test_of_nothing_there_is_no_quantile(share: float) -> None:
    assert quantiles({}, [share]) == []


@given(sketches, sketches, sketches)
def test_merging_is_adding_in_any_order(a: dict[int, int], b: dict[int, int], c: dict[int, int]) -> None:
    assert merged([a, merged([b, c])]) == merged([merged([c, a]), b])
    assert sum(merged([a, b]).values()) == sum(a.values()) + sum(b.values())


@given(st.lists(times, max_size=100), st.integers(2, 40))
def test_at_a_power_of_two_the_count_is_exact(made: list[int], power: int) -> None:
    sketch = merged({bucket(time): 1} for time in made)

    assert cumulative(sketch, [bucket(2**power)]) == [sum(time < 2**power for time in made)]


def test_tallies_are_summed_by_kind_and_outcome() -> None:
    one = AttemptStats(
        kind="a", outcome="completed", count=2, run={3: 2}, run_microseconds=100, payload_bytes=9, payload_most=5
    )
    two = AttemptStats(
        kind="a", outcome="completed", count=1, run={3: 1}, wait={7: 1}, wait_microseconds=200, payload_most=7
    )
    other = AttemptStats(kind="a", outcome="failed", count=4)

    assert summed([other, one, two]) == [
        AttemptStats(
            kind="a", outcome="completed", count=3, run={3: 3}, wait={7: 1}, run_microseconds=100,
            wait_microseconds=200, payload_bytes=9, payload_most=7,
        ),
        other,
    ]  # fmt: skip
