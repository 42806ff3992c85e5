"""What counting costs: the same drain by workers that count what they do, and by workers that do not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness import Bench, Metrics
from benchmarks.peer import Peer
from benchmarks.scenario import ALONE, RATE, RATIO, Scenario

_ROUNDS = 2


async def metered(bench: Bench, peer: Peer) -> Metrics:
    """Taken in turns, for a machine is not the same from one minute to the next."""
    jobs = bench.drain_jobs(peer) // 2
    counting, alone = 0.0, 0.0
    for _ in range(_ROUNDS):
        with _uncounted():
            alone += (await bench.drain(peer, jobs))["jobs_per_s"] / _ROUNDS
        counting += (await bench.drain(peer, jobs))["jobs_per_s"] / _ROUNDS
    return {"jobs_per_s": counting, "alone_jobs_per_s": alone, "ratio": counting / alone}


@contextmanager
def _uncounted() -> Iterator[None]:
    """Worker processes that are started meanwhile count nothing."""
    os.environ["DUTIFUL_METRICS"] = "off"
    try:
        yield
    finally:
        del os.environ["DUTIFUL_METRICS"]


METERING_SCENARIOS = (Scenario("metrics", "Drain while metrics are counted", metered, (RATE, ALONE, RATIO)),)
