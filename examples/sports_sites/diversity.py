"""Diversity of sports around a site: Shannon's index, weighted by population."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from examples.sports_sites.sites import Site

AREA = 2_000  # metres around a site that an analysis covers
REACH = 800  # metres that people walk


@dataclass(frozen=True)
class Cell:
    """A square of the population grid, by its centre."""

    east: int
    north: int
    population: int


@dataclass(frozen=True)
class Diversity:
    index: float
    population: int
    cells: int


def diversity(around: Site, cells: Sequence[Cell], sites: Sequence[Site]) -> Diversity:
    """The mean index over the area of a site, weighted by the population of each cell."""
    near = [cell for cell in cells if cell.population and _within(AREA, around, cell)]
    population = sum(cell.population for cell in near)
    weighted = sum(cell.population * shannon(_types(cell, sites)) for cell in near)
    return Diversity(weighted / population if population else 0.0, population, len(near))


def shannon(things: Iterable[str]) -> float:
    """0 if all are of one sort; the logarithm of the number of sorts if all are equally common."""
    counts = Counter(things)
    total = counts.total()
    return sum(-count / total * math.log(count / total) for count in counts.values()) + 0.0  # never -0.0


def _types(cell: Cell, sites: Sequence[Site]) -> list[str]:
    return [site.type for site in sites if _within(REACH, site, cell)]


def _within(metres: int, site: Site, cell: Cell) -> bool:
    return math.hypot(site.east - cell.east, site.north - cell.north) <= metres
