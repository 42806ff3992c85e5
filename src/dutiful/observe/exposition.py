"""The two formats of a page of metrics: Prometheus' text, and OpenMetrics.

Both have the same lines of samples, and other lines about them; so those are written once. A page may have tens of
thousands, and is written anew for each measurement.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_SUFFIX = {"counter": "_total", "info": "_info"}  # of a sample's name
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_UNQUOTED = str.maketrans({"\\": r"\\", "\n": r"\n"})
_WEIGHT = re.compile(r"[01](\.\d*)?")


class Family(NamedTuple):
    """A metric: what it is, and the lines of its samples, each with its line break."""

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
    """One value for each series; `labels` are the names of what each has in their order."""
    sample = name + _SUFFIX.get(type, "")
    return Family(name, type, help, [f"{sample}{_braced(labels, values)} {value}\n" for values, value in samples])


def histogram(
    name: str,
    help: str,
    label: str,
    edges: Sequence[str],
    series: Iterable[tuple[str, Sequence[int], int, float]],
) -> Family:
    """For each series how many were within each edge, how many there were, and what they came to in all."""
    lines: list[str] = []
    for value, within, count, total in series:
        mark = f'{label}="{_escaped(value)}"'
        head = f'{name}_bucket{{{mark},le="'
        lines += [f'{head}{edge}"}} {times}\n' for edge, times in zip(edges, within, strict=True)]
        lines.append(f'{head}+Inf"}} {count}\n{name}_count{{{mark}}} {count}\n{name}_sum{{{mark}}} {total}\n')
    return Family(name, "histogram", help, lines)


def text(families: Iterable[Family]) -> bytes:
    parts: list[str] = []
    for one in families:
        name = one.name + _SUFFIX.get(one.type, "")
        kind = "gauge" if one.type == "info" else one.type  # of which this format knows nothing
        parts += [f"# HELP {name} {one.help.translate(_UNQUOTED)}\n# TYPE {name} {kind}\n", *one.lines]
    return "".join(parts).encode()


def openmetrics(families: Iterable[Family]) -> bytes:
    parts: list[str] = []
    for one in families:
        parts += [f"# HELP {one.name} {_escaped(one.help)}\n# TYPE {one.name} {one.type}\n", *one.lines]
    return "".join([*parts, "# EOF\n"]).encode()


def prefers_openmetrics(accept: str) -> bool:
    """What a header Accept comes to: OpenMetrics must be asked for by name, and text not be liked better."""
    weights = dict(map(_weighed, accept.lower().split(",")))
    modern = weights.get("application/openmetrics-text", 0.0)
    return modern > 0 and modern >= _first(weights, "text/plain", "text/*", "*/*")


def _weighed(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip() for piece in part.split(";"))
    asked = [value.strip() for key, _, value in (one.partition("=") for one in parameters) if key.strip() == "q"]
    if not asked:
        return name, 1.0
    return name, float(asked[0]) if _WEIGHT.fullmatch(asked[0]) else 0.0


def _first(weights: Mapping[str, float], *names: str) -> float:
    return next((weights[name] for name in names if name in weights), 0.0)


def _braced(labels: Sequence[str], values: Sequence[str]) -> str:
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.translate(_ESCAPES)
