"""What counting costs: the same drain by workers that count what they do, and by workers that do not."""

from __future__ import annotations

import os
import statistics
from unittest.mock import patch

from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import Peer
from benchmarks.scenario import ALONE, RATE, RATIO, Metric, Scenario
from dutiful.declare.alert import BUILT_IN

# A drain ends before a worker with default settings reports its counts; with these it reports several times.
# Alerts need counts, so they are off on both sides.
_BOTH = {"DUTIFUL_HEARTBEAT": "1s", "DUTIFUL_ALERTS_OFF": ",".join(BUILT_IN)}
_COUNTED = {**_BOTH, "DUTIFUL_METRICS": "on"}
_UNCOUNTED = {**_BOTH, "DUTIFUL_METRICS": "off"}


async def metered(bench: Bench, peer: Peer) -> Metrics:
    """Measured in pairs of alternating order, because the speed of a machine varies from minute to minute."""
    counted: list[float] = []
    alone: list[float] = []
    for pair in range(bench.sizes.pairs):
        turns = ((counted, _COUNTED), (alone, _UNCOUNTED))
        for rates, settings in turns[::-1] if pair % 2 else turns:
            # Worker processes inherit these settings.
            with patch.dict(os.environ, settings):
                rates.append((await bench.drain(peer, bench.drain_jobs(peer) // 2))["jobs_per_s"])
    ratios = [one / other for one, other in zip(counted, alone, strict=True)]
    return {
        "jobs_per_s": statistics.median(counted),
        "alone_jobs_per_s": statistics.median(alone),
        "ratio": statistics.median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
    }


def _seconds(sizes: Sizes) -> float:
    return 2 * sizes.pairs * (2.5 + 4 * sizes.drain_scale)


METERING_SCENARIOS = (
    Scenario(
        "metrics",
        "Drain while metrics are counted, median of pairs",
        metered,
        (RATE, ALONE, RATIO, Metric("ratio_least", "least"), Metric("ratio_most", "most")),
        seconds=_seconds,
        repeats=1,
    ),
)
