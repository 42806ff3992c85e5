"""What a sample can know: about how many there are, between which bounds, and how many it may have overlooked.

It looks through windows: pages of a table, or short stretches of a line. What comes in batches is seen in batches, so
it is windows that count, not jobs: a kind that 4 of 384 have shown is known as well as 4 throws of a die tell.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)

# In standard deviations. Alerts look four times a minute: with two, somebody would be told of chance every few minutes.
CAUTION = 3.0


class Doubt(msgspec.Struct, frozen=True):
    """Between which bounds an estimate can be relied on."""

    low: float
    high: float
    unseen: float = 0.0  # so many there may be of each kind of which none was seen in the queue
    everywhere: bool = False  # and in each queue of which none was seen


class Share(NamedTuple):
    """What one view shows of one sort."""

    jobs: float  # for so many do those stand that were seen
    squares: float  # the sum, over windows, of the square of what each stands for
    seen: int  # there are at least so many


@dataclass(frozen=True)
class View(Generic[K]):
    """What was seen of one line, or of one place."""

    shares: Mapping[K, Share]
    windows: int = 0  # how many were looked through; 0: all was counted

    @cached_property
    def unseen(self) -> float:
        """How many there may be of a sort that no window has shown: what a few would, if it comes as others do."""
        jobs = sum(share.jobs for share in self.shares.values())
        if not self.windows or not jobs:
            return 0.0
        return _most(0) * sum(share.squares for share in self.shares.values()) / jobs

    def bounds(self, sort: K) -> tuple[float, float]:
        share = self.shares.get(sort, Share(0.0, 0.0, 0))
        if not self.windows:
            return share.jobs, share.jobs
        if not share.squares:
            return share.seen, share.seen + self.unseen
        # As many windows that all show the same would be as sure.
        like = share.jobs**2 / share.squares
        part = min(like / self.windows, 1.0)
        # The more of all windows they are, the less is left to chance; but something may lie between two of them.
        chance, between = math.sqrt(1 - part), part * CAUTION**2 / 2
        each = share.jobs / like
        low = share.jobs - each * ((like - _least(like)) * chance + between)
        high = share.jobs + each * ((_most(like) - like) * chance + between)
        return max(low, share.seen), max(high, share.seen)


def together(views: Sequence[View[K]], sort: K) -> tuple[int, Doubt | None]:
    """How many of a sort all views come to, and with what doubt; None: they were counted."""
    parts = [(_count(view, sort), view.bounds(sort)) for view in views]
    count = sum(part for part, _ in parts)
    if not any(view.windows for view in views):
        return round(count), None
    return round(count), summed([(part, Doubt(low, high)) for part, (low, high) in parts], unseen_in(views))


def summed(parts: Sequence[tuple[float, Doubt | None]], unseen: float = 0.0, *, everywhere: bool = False) -> Doubt:
    """The doubt of a sum: each is wrong by itself, so that their errors add up as the sides of right angles do."""
    count = sum(part for part, _ in parts)
    down = math.hypot(*(part - doubt.low for part, doubt in parts if doubt))
    up = math.hypot(*(doubt.high - part for part, doubt in parts if doubt))
    return Doubt(max(count - down, 0.0), count + up, unseen, everywhere)


def unseen_in(views: Sequence[View[K]]) -> float:
    return math.hypot(*(view.unseen for view in views))


def _least(seen: float) -> float:
    """Of events that come by chance: if so many were seen, at least so many were to be expected."""
    return seen * max(1 - 1 / (9 * seen) - CAUTION / (3 * math.sqrt(seen)), 0.0) ** 3


def _most(seen: float) -> float:
    more = seen + 1
    return more * (1 - 1 / (9 * more) + CAUTION / (3 * math.sqrt(more))) ** 3


def _count(view: View[K], sort: K) -> float:
    share = view.shares.get(sort)
    return 0.0 if share is None else max(share.jobs, share.seen)
