"""What a sample can know: its bounds hold whatever stands in a line, and however it stands there."""

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

    long: View[str] = View({"b": Share(9_000.0, 9_000.0 * 40, 300)}, windows=100)
    count, bounds = total([short, long], "a")
    assert count == 3  # and as many as the long line may hide
    assert bounds == Bounds(3, 3 + long.unseen, long.unseen)


def test_there_are_at_least_as_many_as_were_seen() -> None:
    view = View({"a": Share(0.0, 0.0, 6), "b": Share(1_000.0, 100_000.0, 10)}, windows=100)

    count, bounds = total([view], "a")
    assert count == 6
    assert bounds is not None and (bounds.low, bounds.high) == (6, 6 + view.unseen)


shares = st.builds(lambda n, size: Share(n * size, n * size * size, n), st.integers(1, 40), st.floats(1, 1_000))
views = st.builds(
    lambda found, windows: View(found, windows), st.dictionaries(st.sampled_from("abc"), shares), st.integers(40, 1_000)
)


@given(st.lists(views, min_size=1, max_size=4), st.sampled_from("abcd"))
def test_an_estimate_lies_between_its_bounds(found: list[View[str]], sort: str) -> None:
    count, bounds = total(found, sort)

    assert bounds is not None
    assert 0 <= bounds.low <= count + 1 and count - 1 <= bounds.high
