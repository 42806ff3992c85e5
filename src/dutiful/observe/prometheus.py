"""Metrics for Prometheus, in its two formats: text and OpenMetrics.

Every metric of the catalogue is a gauge `dutiful_<name>`, except pending_total, which is sum(dutiful_pending). Counters
and histograms hold all that was ever counted, so that scrapers compute their own rates.

Both formats have the same sample lines, so those are written once for each measurement: there may be tens of thousands.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple

from dutiful.core.metrics.catalogue import METRICS, Sample
from dutiful.core.metrics.sketch import Sketch, add, bucket, cumulative
from dutiful.observe.measure import DEPTHS, FleetSnapshot, samples
from dutiful.store.metrics import AttemptStats

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_SUFFIX = {"counter": "_total", "info": "_info"}  # of a sample's name
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_UNQUOTED = str.maketrans({"\\": r"\\", "\n": r"\n"})
_WEIGHT = re.compile(r"[01](\.\d*)?")
NOT_SHOWN = {"pending_total"}  # only counters may end in _total, and scrapers can compute a sum
# Powers of two microseconds, where a sketch is exact: from a millisecond to over an hour.
_POWERS = range(10, 33, 2)
_EDGES = [repr(2**power / 1e6) for power in _POWERS]
_LIMITS = [bucket(2**power) for power in _POWERS]
_Series = tuple[str, Sequence[int], int, float]


class Family(NamedTuple):
    """A metric with its sample lines, each with its line break."""

    name: str
    type: Literal["gauge", "counter", "histogram", "info"]
    help: str
    lines: Sequence[str]


def family(
    name: str,
    type: Literal["gauge", "counter", "info"],
    help: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], float]],
) -> Family:
    """One value for each series; `labels` names the values of each, in their order."""
    sample = name + _SUFFIX.get(type, "")
    return Family(name, type, help, [f"{sample}{_braces(labels, values)} {value}\n" for values, value in samples])


def histogram(name: str, help: str, label: str, edges: Sequence[str], series: Iterable[_Series]) -> Family:
    """For each series: how many were within each edge, how many in all, and their sum."""
    lines: list[str] = []
    for value, within, count, total in series:
        mark = f'{label}="{_escape(value)}"'
        head = f'{name}_bucket{{{mark},le="'
        lines += [f'{head}{edge}"}} {times}\n' for edge, times in zip(edges, within, strict=True)]
        lines.append(f'{head}+Inf"}} {count}\n{name}_count{{{mark}}} {count}\n{name}_sum{{{mark}}} {total}\n')
    return Family(name, "histogram", help, lines)


class Page(NamedTuple):
    text: bytes
    openmetrics: bytes


def page(fleet: FleetSnapshot, totals: Sequence[AttemptStats], version: str) -> Page:
    found = list(families(fleet, totals, version))
    return Page(text(found), openmetrics(found))


def families(fleet: FleetSnapshot, totals: Sequence[AttemptStats], version: str) -> Iterator[Family]:
    yield family("dutiful", "info", "The release that answers", ["version"], [([version], 1)])
    measured = samples(fleet)
    yield from _gauges(measured)
    yield _estimated(measured)
    yield from _counters(totals)
    trips = [([one.breaker.name], one.breaker.trips) for one in fleet.breakers]
    yield family("dutiful_breaker_trips", "counter", "How often failures have opened a breaker", ["breaker"], trips)
    yield histogram("dutiful_run_seconds", "How long attempts ran", "kind", _EDGES, _times(totals, "run"))
    waited = "How long jobs had been due when their first attempt began"
    yield histogram("dutiful_wait_seconds", waited, "kind", _EDGES, _times(totals, "wait"))


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


def _counters(totals: Sequence[AttemptStats]) -> Iterator[Family]:
    attempts = [([one.kind, one.outcome], one.count) for one in totals]
    yield family("dutiful_attempts", "counter", "Attempts that have ended", ["kind", "outcome"], attempts)
    sizes: dict[str, int] = {}
    for one in totals:
        sizes[one.kind] = sizes.get(one.kind, 0) + one.payload_bytes
    payloads = [([kind], size) for kind, size in sizes.items()]
    yield family("dutiful_payload_bytes", "counter", "Payloads that were run", ["kind"], payloads)


def _times(totals: Iterable[AttemptStats], what: Literal["run", "wait"]) -> Iterator[_Series]:
    """The times of each kind, over all outcomes."""
    sketches: dict[str, Sketch] = {}
    microseconds: dict[str, int] = {}
    for one in totals:
        add(sketches.setdefault(one.kind, {}), getattr(one, what))
        microseconds[one.kind] = microseconds.get(one.kind, 0) + getattr(one, f"{what}_microseconds")
    for kind, sketch in sketches.items():
        # Divided here and not before, because sums of integers never decrease, in whatever order they are added.
        yield kind, cumulative(sketch, _LIMITS), sum(sketch.values()), microseconds[kind] / 1e6


def text(families: Iterable[Family]) -> bytes:
    parts: list[str] = []
    for one in families:
        name = one.name + _SUFFIX.get(one.type, "")
        kind = "gauge" if one.type == "info" else one.type  # the text format has no info
        parts += [f"# HELP {name} {one.help.translate(_UNQUOTED)}\n# TYPE {name} {kind}\n", *one.lines]
    return "".join(parts).encode()


def openmetrics(families: Iterable[Family]) -> bytes:
    parts: list[str] = []
    for one in families:
        parts += [f"# HELP {one.name} {_escape(one.help)}\n# TYPE {one.name} {one.type}\n", *one.lines]
    return "".join([*parts, "# EOF\n"]).encode()


def prefers_openmetrics(accept: str) -> bool:
    """Reads an Accept header: OpenMetrics must be named, and text not be preferred."""
    weights = dict(map(_weight, accept.lower().split(",")))
    modern = weights.get("application/openmetrics-text", 0.0)
    return modern > 0 and modern >= _first(weights, "text/plain", "text/*", "*/*")


def _weight(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip() for piece in part.split(";"))
    asked = [value.strip() for key, _, value in (one.partition("=") for one in parameters) if key.strip() == "q"]
    if not asked:
        return name, 1.0
    return name, float(asked[0]) if _WEIGHT.fullmatch(asked[0]) else 0.0


def _first(weights: Mapping[str, float], *names: str) -> float:
    return next((weights[name] for name in names if name in weights), 0.0)


def _braces(labels: Sequence[str], values: Sequence[str]) -> str:
    pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in zip(labels, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escape(value: str) -> str:
    return value.translate(_ESCAPES)
