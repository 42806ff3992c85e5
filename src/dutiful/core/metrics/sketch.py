"""Durations counted in buckets of growing width: any quantile within an eighth, in little space.

Each power of two microseconds is divided into four buckets. A sketch has the count of each bucket that is not empty, so
that two are merged by adding.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

Sketch = dict[int, int]


def bucket(microseconds: int) -> int:
    """The bucket of a duration; below four microseconds, each has its own."""
    if microseconds < 4:
        return microseconds if microseconds > 0 else 0
    power = microseconds.bit_length() - 3
    return (power << 2) + (microseconds >> power)


def edge(number: int) -> int:
    """The shortest duration, in microseconds, that is too long for a bucket."""
    if number < 4:
        return number + 1
    power, part = (number >> 2) - 1, (number & 3) + 4
    return (part + 1) << power


def merged(sketches: Iterable[Mapping[int, int]]) -> Sketch:
    total: Sketch = {}
    for sketch in sketches:
        add(total, sketch)
    return total


def add(total: Sketch, sketch: Mapping[int, int]) -> None:
    """Adds `sketch` to `total`, which is changed."""
    if not total:
        total.update(sketch)
        return
    for number, count in sketch.items():
        total[number] = total.get(number, 0) + count


def add_times(total: Sketch, seconds: Iterable[float]) -> int:
    """Adds durations to `total`, which is changed; returns their sum, in microseconds.

    They are sorted first, so that each bucket is searched only once.
    """
    times = sorted(seconds)
    if times and times[0] < 0:
        times = [max(time, 0.0) for time in times]
    start, end = 0, len(times)
    while start < end:
        number = bucket(int(times[start] * 1e6))
        after = max(bisect_left(times, edge(number) / 1e6, start), start + 1)
        total[number] = total.get(number, 0) + after - start
        start = after
    return int(sum(times) * 1e6)


def quantiles(sketch: Mapping[int, int], shares: Sequence[float]) -> list[float]:
    """The durations, in seconds, that each of these shares does not exceed; none if the sketch is empty."""
    numbers = sorted(sketch)
    seen = list(accumulate(sketch[number] for number in numbers))
    return [_middle(numbers[bisect_left(seen, share * seen[-1])]) for share in shares] if numbers else []


def _middle(number: int) -> float:
    """The middle of a bucket, in seconds."""
    return ((edge(number - 1) if number else 0) + edge(number)) / 2e6


def cumulative(sketch: Mapping[int, int], limits: Sequence[int]) -> list[int]:
    """For each limit, a bucket's number, the count in lower buckets; limits ascend."""
    counts = [0] * (len(limits) + 1)
    for number, count in sketch.items():
        counts[bisect_right(limits, number)] += count
    return list(accumulate(counts[:-1]))
