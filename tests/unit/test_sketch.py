"""Sketches: any quantile within an eighth, merged by adding."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.metrics.sketch import add, add_times, bucket, cumulative, edge, merged, quantiles
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


@pytest.mark.parametrize(
    ("time", "number", "end"), [(0, 0, 1), (3, 3, 4), (4, 4, 5), (8, 8, 10), (9, 8, 10), (1_000, 35, 1_024)]
)
def test_up_to_four_microseconds_each_has_its_bucket_then_a_quarter_of_a_power_of_two(
    time: int, number: int, end: int
) -> None:
    assert (bucket(time), edge(number)) == (number, end)


def test_a_time_before_its_start_counts_as_none() -> None:
    """Clocks are set back."""
    assert bucket(-5) == 0
    total: dict[int, int] = {}
    assert add_times(total, [2.5e-6, -0.5]) == 2
    assert total == {0: 1, 2: 1}


@pytest.mark.parametrize("end", [2**10, 2**20, 2**30])
def test_times_on_either_side_of_an_edge_fall_into_two_buckets(end: int) -> None:
    total: dict[int, int] = {}
    add_times(total, [(end - 0.5) / 1e6, (end + 0.5) / 1e6])
    assert total == {bucket(end) - 1: 1, bucket(end): 1}


@given(st.lists(times, max_size=50), sketches)
def test_times_are_added_as_each_by_itself(made: list[int], before: dict[int, int]) -> None:
    total = dict(before)
    # Half a microsecond later than a whole one, because the edge itself may be rounded to either side.
    spent = add_times(total, [(time + 0.5) / 1e6 for time in made])

    assert total == merged([before, *({bucket(time): 1} for time in made)])
    assert spent == pytest.approx(sum(time + 0.5 for time in made), abs=1)


def test_what_is_added_is_not_changed_and_what_it_is_added_to_is() -> None:
    total: dict[int, int] = {}
    sketch = {3: 2}
    add(total, sketch)
    add(total, sketch)
    assert (total, sketch) == ({3: 4}, {3: 2})


def test_a_quantile_is_the_middle_of_its_bucket() -> None:
    sketch = {0: 1, 8: 2, 12: 1}  # below 1, from 8 to 10, from 16 to 20 microseconds

    assert quantiles(sketch, [0.25, 0.26, 0.75, 0.76, 1.0]) == pytest.approx([0.5e-6, 9e-6, 9e-6, 18e-6, 18e-6])


def test_counts_are_of_all_lower_buckets_and_not_of_the_limits_own() -> None:
    assert cumulative({1: 1, 5: 2, 9: 4}, [1, 5, 6, 10]) == [0, 1, 3, 7]


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
