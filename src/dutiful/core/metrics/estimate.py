"""Estimates from a sample: how many jobs there are, between which bounds, and how many it may have missed.

A sample reads windows: pages of a table, or short ranges of a queue. Jobs come in batches, so windows count, not jobs:
an estimate for a kind seen in 4 of 384 windows is as uncertain as one from 4 random events.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)

# In standard deviations. Alerts are evaluated four times a minute; with two, chance would fire one every few minutes.
CAUTION = 3.0


class Bounds(msgspec.Struct, frozen=True):
    """The range in which the true number lies."""

    low: float
    high: float
    unseen: float = 0.0  # how many there may be of each kind of the queue that was not seen
    everywhere: bool = False  # also in each queue that was not seen


class Share(NamedTuple):
    """The sampled jobs of one group in one view."""

    jobs: float  # the estimated number
    squares: float  # the sum, over windows, of the square of the number that each represents
    seen: int  # the least possible number


@dataclass(frozen=True)
class View(Generic[K]):
    """The sample of one queue, or of one table."""

    shares: Mapping[K, Share]
    windows: int = 0  # the number read; 0: all jobs were counted

    @cached_property
    def unseen(self) -> float:
        """How many there may be of a group that no window has shown, if it comes in batches as the others do."""
        jobs = sum(share.jobs for share in self.shares.values())
        if not self.windows or not jobs:
            return 0.0
        return _most(0) * sum(share.squares for share in self.shares.values()) / jobs

    def bounds(self, group: K) -> tuple[float, float]:
        share = self.shares.get(group, Share(0.0, 0.0, 0))
        if not self.windows:
            return share.jobs, share.jobs
        if not share.squares:
            return share.seen, share.seen + self.unseen
        # The effective sample size.
        like = share.jobs**2 / share.squares
        part = min(like / self.windows, 1.0)
        # The larger their part of all windows, the less is left to chance; but jobs may lie between two windows.
        chance, between = math.sqrt(1 - part), part * CAUTION**2 / 2
        each = share.jobs / like
        low = share.jobs - each * ((like - _least(like)) * chance + between)
        high = share.jobs + each * ((_most(like) - like) * chance + between)
        return max(low, share.seen), max(high, share.seen)


def total(views: Sequence[View[K]], group: K) -> tuple[int, Bounds | None]:
    """The number of jobs of a group in all views, with bounds; None: they were counted."""
    parts = [(_count(view, group), view.bounds(group)) for view in views]
    count = sum(part for part, _ in parts)
    if not any(view.windows for view in views):
        return round(count), None
    unseen = math.hypot(*(view.unseen for view in views))
    return round(count), sum_bounds([(part, Bounds(low, high)) for part, (low, high) in parts], unseen)


def sum_bounds(
    parts: Sequence[tuple[float, Bounds | None]], unseen: float = 0.0, *, everywhere: bool = False
) -> Bounds:
    """The bounds of a sum; the errors are independent, so they add up as a root of squares."""
    count = sum(part for part, _ in parts)
    down = math.hypot(*(part - bounds.low for part, bounds in parts if bounds))
    up = math.hypot(*(bounds.high - part for part, bounds in parts if bounds))
    return Bounds(max(count - down, 0.0), count + up, unseen, everywhere)


def _least(seen: float) -> float:
    """The lower bound of the expected number of random events, if `seen` were seen."""
    return seen * max(1 - 1 / (9 * seen) - CAUTION / (3 * math.sqrt(seen)), 0.0) ** 3


def _most(seen: float) -> float:
    more = seen + 1
    return more * (1 - 1 / (9 * more) + CAUTION / (3 * math.sqrt(more))) ** 3


def _count(view: View[K], group: K) -> float:
    share = view.shares.get(group)
    return 0.0 if share is None else max(share.jobs, share.seen)
