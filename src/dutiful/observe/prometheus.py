"""What was measured, as Prometheus reads it.

Every metric of the catalogue is a gauge `dutiful_<name>`, but for pending_total, which is sum(dutiful_pending). Beside
them stand counters and histograms of all that was ever counted: whoever scrapes makes their own rates of these.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics

from dutiful.core.metric import METRICS, Sample
from dutiful.core.sketch import Sketch, cumulative, merged
from dutiful.measuring import Tally
from dutiful.observe.measure import DEPTHS, Look, samples

Writer = Callable[["Families"], bytes]
_plain: Writer = exposition.generate_latest
_modern: Writer = openmetrics.generate_latest
TEXT = exposition.CONTENT_TYPE_PLAIN_0_0_4
OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST
NOT_SHOWN = {"pending_total"}  # only counters may have that ending, and a sum is the reader's own
# Powers of two microseconds, where a sketch is exact: from a millisecond to a good hour.
EDGES = [2**power / 1e6 for power in range(10, 33, 2)]


class Families:
    """What a registry would collect."""

    def __init__(self, seen: Look, totals: Sequence[Tally], version: str) -> None:
        self._seen = seen
        self._totals = totals
        self._version = version

    def collect(self) -> Iterator[Family]:
        yield InfoMetricFamily("dutiful", "The release that answers", {"version": self._version})
        measured = samples(self._seen)
        yield from _gauges(measured)
        yield _estimated(measured)
        yield from _counters(self._totals)
        trips = CounterMetricFamily(
            "dutiful_breaker_trips", "How often failures have opened a breaker", labels=["breaker"]
        )
        for one in self._seen.breakers:
            trips.add_metric([one.breaker.name], one.breaker.trips)
        yield trips
        yield _histogram("run", "How long attempts ran", self._totals)
        yield _histogram("wait", "How long jobs had been due when they were first claimed", self._totals)


def written(families: Families, accept: str = "") -> tuple[bytes, str]:
    """The page and its content type: OpenMetrics for those who know it, the plain text format for all others."""
    if any(_is_openmetrics(part) for part in accept.split(",")):
        return _modern(families), OPENMETRICS
    return _plain(families), TEXT


def _is_openmetrics(accepted: str) -> bool:
    name, *parameters = (part.strip().lower() for part in accepted.split(";"))
    return name == "application/openmetrics-text" and not {"q=0", "q=0.0"} & set(parameters)


def _gauges(measured: Sequence[Sample]) -> Iterator[Family]:
    for name, metric in METRICS.items():
        if name in NOT_SHOWN:
            continue
        family = GaugeMetricFamily(f"dutiful_{name}", metric.help, labels=metric.labels)
        for sample in measured:
            if sample.metric == name:
                family.add_metric([sample.labels[label] for label in metric.labels], sample.value)
        yield family


def _estimated(measured: Iterable[Sample]) -> Family:
    some = {sample.metric for sample in measured if sample.estimated}
    family = GaugeMetricFamily("dutiful_estimated", "1 if some of its values are estimates, else 0", labels=["metric"])
    for name in DEPTHS.values():
        family.add_metric([name], float(name in some))
    return family


def _counters(totals: Iterable[Tally]) -> Iterator[Family]:
    attempts = CounterMetricFamily("dutiful_attempts", "Attempts that have ended", labels=["kind", "outcome"])
    payloads = CounterMetricFamily("dutiful_payload_bytes", "Payloads that were run", labels=["kind"])
    sizes: dict[str, int] = {}
    for one in totals:
        attempts.add_metric([one.kind, one.outcome], one.count)
        sizes[one.kind] = sizes.get(one.kind, 0) + one.payload_bytes
    for kind, size in sizes.items():
        payloads.add_metric([kind], size)
    yield attempts
    yield payloads


def _histogram(what: str, help_text: str, totals: Iterable[Tally]) -> Family:
    family = HistogramMetricFamily(f"dutiful_{what}_seconds", help_text, labels=["kind"])
    sketches: dict[str, list[Sketch]] = {}
    seconds: dict[str, float] = {}
    for one in totals:
        sketch, took = (one.run, one.run_seconds) if what == "run" else (one.wait, one.wait_seconds)
        sketches.setdefault(one.kind, []).append(sketch)
        seconds[one.kind] = seconds.get(one.kind, 0.0) + took
    for kind, some in sketches.items():
        sketch = merged(some)
        counts = zip(map(repr, EDGES), cumulative(sketch, EDGES), strict=True)
        family.add_metric([kind], [*counts, ("+Inf", sum(sketch.values()))], seconds[kind])
    return family
