"""A pipeline whose phases say at every step how far they are, and the same steps as one silent job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from benchmarks.peer import DEFAULT_LANE
from benchmarks.peers.dutiful_peer import make_app
from benchmarks.tally import Tally
from dutiful import Context, Dutiful
from dutiful.store import Store
from dutiful.tracking import PhaseMark, Report

PHASED, PLAIN = "phased", "plain"
PHASES = ("download", "process", "upload")
STEPS = 7  # in each phase


def phased_app(url: str, tally: Tally | None = None) -> Dutiful:
    app = make_app(url)
    lane: dict[str, Any] = {"queue": DEFAULT_LANE.queue, "priority": DEFAULT_LANE.priority}
    pipeline = app.pipeline(PHASED, **lane)

    async def phase(ctx: Context, id: int, to: str, sent: float, text: str) -> int:
        for step in range(1, STEPS + 1):
            await asyncio.sleep(0)
            ctx.progress(100 * step / STEPS, f"step {step} of {STEPS}")
        if tally is not None and ctx.phase == PHASES[-1]:
            tally.hit(sent)
        return id

    for name in PHASES:
        pipeline.phase(name=name)(phase)

    @app.job(name=PLAIN, **lane)
    async def plain(id: int, to: str, sent: float, text: str) -> int:
        for _ in range(len(PHASES) * STEPS):
            await asyncio.sleep(0)
        if tally is not None:
            tally.hit(sent)
        return id

    return app


async def work(url: str, tally: Tally, queues: list[str]) -> None:
    app = phased_app(url, tally)
    async with app.opened() as client:
        _count_reports(client.store, tally)
        await app.make_worker(client).run()


def _count_reports(store: Store, tally: Tally) -> None:
    """The stores keep no count of their own, and one of them has no statistics either."""
    write = store.report

    async def report(
        reports: Sequence[Report], marks: Sequence[PhaseMark] = (), *, now: datetime | None = None
    ) -> frozenset[int]:
        lost = await write(reports, marks, now=now)
        tally.reported(len(reports))
        return lost

    store.report = report  # type: ignore[method-assign]
