"""What was measured, as Prometheus reads it.

Every metric of the catalogue is a gauge `dutiful_<name>`, but for pending_total, which is sum(dutiful_pending). Beside
them stand counters and histograms of all that was ever counted: whoever scrapes makes their own rates of these.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from dutiful.core.metric import METRICS, Sample
from dutiful.core.sketch import Sketch, add, bucket, cumulative
from dutiful.measuring import Tally
from dutiful.observe import exposition
from dutiful.observe.exposition import Family, family, histogram
from dutiful.observe.measure import DEPTHS, Look, samples

NOT_SHOWN = {"pending_total"}  # only counters may have that ending, and a sum is the reader's own
# Powers of two microseconds, where a sketch is exact: from a millisecond to a good hour.
_POWERS = range(10, 33, 2)
_EDGES = [repr(2**power / 1e6) for power in _POWERS]
_LIMITS = [bucket(2**power) for power in _POWERS]


_Series = tuple[str, Sequence[int], int, float]


class Page(NamedTuple):
    """In each format."""

    text: bytes
    openmetrics: bytes


def page(seen: Look, totals: Sequence[Tally], version: str) -> Page:
    found = list(families(seen, totals, version))
    return Page(exposition.text(found), exposition.openmetrics(found))


def families(seen: Look, totals: Sequence[Tally], version: str) -> Iterator[Family]:
    yield family("dutiful", "info", "The release that answers", ["version"], [([version], 1)])
    measured = samples(seen)
    yield from _gauges(measured)
    yield _estimated(measured)
    yield from _counters(totals)
    trips = [([one.breaker.name], one.breaker.trips) for one in seen.breakers]
    yield family("dutiful_breaker_trips", "counter", "How often failures have opened a breaker", ["breaker"], trips)
    run, wait = _times(totals)
    yield histogram("dutiful_run_seconds", "How long attempts ran", "kind", _EDGES, run)
    waited = "How long jobs had been due when their first attempt began"
    yield histogram("dutiful_wait_seconds", waited, "kind", _EDGES, wait)


def _gauges(measured: Iterable[Sample]) -> Iterator[Family]:
    found = {name: list(some) for name, some in groupby(measured, attrgetter("metric"))}
    for name, metric in METRICS.items():
        if name not in NOT_SHOWN:
            series = (([one.labels[label] for label in metric.labels], float(one.value)) for one in found.get(name, ()))
            yield family(f"dutiful_{name}", "gauge", metric.help, metric.labels, series)


def _estimated(measured: Iterable[Sample]) -> Family:
    some = {sample.metric for sample in measured if sample.estimated}
    series = [([name], float(name in some)) for name in (*DEPTHS.values(), "dead_letters")]
    return family("dutiful_estimated", "gauge", "1 if some of its values are estimates, else 0", ["metric"], series)


def _counters(totals: Sequence[Tally]) -> Iterator[Family]:
    attempts = [([one.kind, one.outcome], one.count) for one in totals]
    yield family("dutiful_attempts", "counter", "Attempts that have ended", ["kind", "outcome"], attempts)
    sizes: dict[str, int] = {}
    for one in totals:
        sizes[one.kind] = sizes.get(one.kind, 0) + one.payload_bytes
    payloads = [([kind], size) for kind, size in sizes.items()]
    yield family("dutiful_payload_bytes", "counter", "Payloads that were run", ["kind"], payloads)


class _Times:
    """Of one kind, whatever came of its attempts."""

    def __init__(self) -> None:
        self.sketch: Sketch = {}
        self.microseconds = 0

    def add(self, sketch: Sketch, microseconds: int) -> None:
        add(self.sketch, sketch)
        self.microseconds += microseconds


def _times(totals: Iterable[Tally]) -> tuple[Iterator[_Series], Iterator[_Series]]:
    run: dict[str, _Times] = {}
    wait: dict[str, _Times] = {}
    for one in totals:
        run.setdefault(one.kind, _Times()).add(one.run, one.run_microseconds)
        wait.setdefault(one.kind, _Times()).add(one.wait, one.wait_microseconds)
    return _series(run), _series(wait)


def _series(times: dict[str, _Times]) -> Iterator[_Series]:
    for kind, one in times.items():
        # Divided here and nowhere before: sums of whole numbers never fall, however they were added up.
        yield kind, cumulative(one.sketch, _LIMITS), sum(one.sketch.values()), one.microseconds / 1e6
