"""Takes bulk runs to their end, and resolves dead letters whose new job has ended."""

import asyncio
import logging
import time
from collections.abc import Callable
from uuid import UUID

from dutiful.bulk import step
from dutiful.core import ids
from dutiful.core.errors import DutifulError
from dutiful.delivery import Lines
from dutiful.duties import Survey
from dutiful.production import Producer
from dutiful.reprocessing import Kinds
from dutiful.reviewing import Reviewing

log = logging.getLogger("dutiful.services")
RESOLVED_AT_ONCE = 500
# At most this share of the time goes into steps, and less into looking for what has ended: work comes first.
SHARE, LOOKING = 0.5, 0.05


class Reviewer:
    """`hint` hears of the lines that got jobs."""

    name = "reviewer"

    def __init__(
        self, store: Reviewing, kinds: Kinds, hint: Callable[[Lines], None], producer: Producer | None = None
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._hint = hint
        self._producer = producer
        self._not_before = 0.0
        self._stuck: dict[UUID, str] = {}  # runs that could not be taken further, and why: told once

    async def tick(self, survey: Survey) -> Lines | None:
        if survey.reviewing:
            while await self.step_all():
                pass
            if time.monotonic() >= self._not_before:
                await self._resolve()
        return None

    async def step_all(self) -> bool:
        """One step of each run that goes on, so that a long one keeps no short one waiting; False if none was taken."""
        taken = 0
        for run in await self._store.bulk_runs(running=True):
            began = time.monotonic()
            try:
                _, lines = await step(self._store, run, self._kinds, producer=self._producer)
            except Exception as error:  # this run's trouble, not that of those behind it
                self._tell(run.id, error)
                continue
            self._stuck.pop(run.id, None)
            taken += 1
            if lines:
                self._hint(lines)
            await asyncio.sleep((time.monotonic() - began) * (1 / SHARE - 1))
        return taken > 0

    def _tell(self, run_id: UUID, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"
        if self._stuck.get(run_id) != why:
            self._stuck[run_id] = why
            unforeseen = None if isinstance(error, DutifulError) else error
            log.warning(
                "bulk run %s: %s; its step is taken again, until it can be or the run is stopped",
                ids.public(run_id), why, exc_info=unforeseen,
            )  # fmt: skip

    async def _resolve(self) -> None:
        more = True
        while more:
            began = time.monotonic()
            more = await self._store.resolve_reprocessed(RESOLVED_AT_ONCE) == RESOLVED_AT_ONCE
            took = time.monotonic() - began
            if more:
                await asyncio.sleep(took * (1 / SHARE - 1))
        self._not_before = time.monotonic() + took * (1 / LOOKING - 1)
