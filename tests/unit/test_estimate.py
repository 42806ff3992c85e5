"""What a sample can know: its bounds hold whatever stands in a line, and however it stands there."""

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.metrics.estimate import Bounds, Share, View, sum_bounds, total

LINE, WINDOWS, WIDTH = 50_000, 384, 4


def look(line: list[str], windows: int, chance: Random) -> View[str]:
    """Through windows that open at random, each in its own stretch."""
    seen: dict[str, Counter[int]] = {}
    for window in range(windows):
        at = int((window + chance.random()) * len(line) / windows)
        for kind in line[at : at + WIDTH]:
            seen.setdefault(kind, Counter())[window] += 1
    weight = len(line) / (windows * WIDTH)
    return View(
        {
            kind: Share(weight * counts.total(), weight**2 * sum(n * n for n in counts.values()), counts.total())
            for kind, counts in seen.items()
        },
        windows,
    )


def test_of_what_is_common_the_bounds_are_narrow_and_of_what_is_rare_they_are_wide() -> None:
    chance = Random(7)
    line = ["a" if n % 2 else "b" for n in range(LINE - 50)] + ["rare"] * 50
    chance.shuffle(line)
    view = look(line, WINDOWS, chance)

    count, bounds = total([view], "a")
    assert bounds is not None and count * 0.85 < bounds.low < count < bounds.high < count * 1.15
    assert view.bounds("never seen") == (0, view.unseen)
    assert 50 < view.unseen < LINE / 50


def test_all_together_is_known_better_than_each() -> None:
    chance = Random(7)
    line = [f"kind_{n % 500}" for n in range(LINE)]
    chance.shuffle(line)
    view = look(line, WINDOWS, chance)

    bounds = sum_bounds([total([view], kind) for kind in view.shares])
    assert 0.8 * LINE < bounds.low < LINE < bounds.high < 1.2 * LINE


def test_what_was_counted_is_beyond_doubt_and_stays_so_beside_what_was() -> None:
    short: View[str] = View({"a": Share(3, 0.0, 3)})
    assert total([short, View({"a": Share(2, 0.0, 2), "b": Share(1, 0.0, 1)})], "a") == (5, None)
    assert (short.bounds("a"), short.bounds("none")) == ((3, 3), (0, 0))

    long: View[str] = View({"b": Share(9_000.0, 9_000.0 * 40, 300)}, windows=100)
    count, bounds = total([short, long], "a")
    assert count == 3  # and as many as the long line may hide
    assert bounds == Bounds(3, 3 + long.unseen, long.unseen)


def test_there_are_at_least_as_many_as_were_seen() -> None:
    view = View({"a": Share(0.0, 0.0, 6), "b": Share(1_000.0, 100_000.0, 10)}, windows=100)

    count, bounds = total([view], "a")
    assert count == 6
    assert bounds is not None and (bounds.low, bounds.high) == (6, 6 + view.unseen)


def poisson(most: int, expected: float) -> float:
    """How probable it is to see at most so many random events."""
    return math.fsum(math.exp(n * math.log(expected) - expected - math.lgamma(n + 1)) for n in range(most + 1))


@pytest.mark.parametrize("windows", [1, 2, 10, 40, 150])
def test_bounds_of_what_was_seen_in_few_of_many_windows_are_those_of_random_events(windows: int) -> None:
    """Three standard deviations at either end: what was seen would be seen once in 741 times."""
    view = View({"a": Share(50.0 * windows, 50.0**2 * windows, windows)}, windows=10**9)
    low, high = view.bounds("a")

    assert poisson(windows, high / 50) == pytest.approx(0.00135, rel=0.1)
    if windows > 2:
        assert 1 - poisson(windows - 1, low / 50) == pytest.approx(0.00135, rel=0.2)
    else:
        assert low == windows, "not fewer than were seen"


def test_of_what_no_window_has_shown_there_may_be_as_many_as_would_seldom_be_missed() -> None:
    view = View({"a": Share(1_000.0, 50_000.0, 5), "b": Share(3_000.0, 150_000.0, 7)}, windows=100)

    assert math.exp(-view.unseen / 50) == pytest.approx(0.00135, rel=0.2)
    assert View({"a": Share(1_000.0, 50_000.0, 5)}).unseen == View({}, windows=100).unseen == 0.0


def test_of_what_every_window_shows_only_what_lies_between_windows_is_left_to_chance() -> None:
    view = View({"a": Share(1_000.0, 10_000.0, 100)}, windows=100)

    assert view.bounds("a") == pytest.approx((1_000 - 10 * 4.5, 1_000 + 10 * 4.5))
    twice = View({"a": Share(1_000.0, 10_000.0, 100)}, windows=50)
    assert twice.bounds("a") == view.bounds("a")


def test_the_errors_of_a_sum_add_up_as_a_root_of_squares() -> None:
    parts = [(100.0, Bounds(97, 103)), (50.0, Bounds(46, 58)), (7.0, None)]

    assert sum_bounds(parts, 9.0, everywhere=True) == Bounds(157 - 5, 157 + math.hypot(3, 8), 9.0, True)
    assert sum_bounds([(5.0, Bounds(0, 9)), (5.0, Bounds(-20, 9))]).low == 0.0
    assert sum_bounds([(5.0, None)]) == Bounds(5, 5, 0.0, False) == Bounds(5, 5)


def test_what_several_views_may_have_missed_adds_up_alike() -> None:
    one = View({"a": Share(1_000.0, 30_000.0, 5)}, windows=100)
    other = View({"a": Share(1_000.0, 40_000.0, 5)}, windows=100)
    _, bounds = total([one, other], "a")

    assert bounds is not None and bounds.unseen == pytest.approx(math.hypot(one.unseen, other.unseen))


shares = st.builds(lambda n, size: Share(n * size, n * size * size, n), st.integers(1, 40), st.floats(1, 1_000))
views = st.builds(
    lambda found, windows: View(found, windows), st.dictionaries(st.sampled_from("abc"), shares), st.integers(40, 1_000)
)


@given(st.lists(views, min_size=1, max_size=4), st.sampled_from("abcd"))
def test_an_estimate_lies_between_its_bounds(found: list[View[str]], sort: str) -> None:
    count, bounds = total(found, sort)

    assert bounds is not None
    assert 0 <= bounds.low <= count + 1 and count - 1 <= bounds.high


@pytest.mark.parametrize("batch", [1, 4, 50])
@pytest.mark.parametrize("count", [0, 10, 100, 1_000, 20_000, 50_000])
def test_the_truth_lies_between_the_bounds_of_nearly_every_look(count: int, batch: int) -> None:
    chance = Random(7)
    line = ["rare"] * batch * (count // batch) + ["common"] * (LINE - count // batch * batch)
    batches = [line[n : n + batch] for n in range(0, LINE, batch)]
    chance.shuffle(batches)
    line = [kind for some in batches for kind in some]

    truth = line.count("rare")
    bounds = [look(line, WINDOWS, chance).bounds("rare") for _ in range(100)]
    assert sum(low <= truth <= high for low, high in bounds) >= 98
