"""Works through bulk runs, and resolves dead letters whose new job has ended."""

import asyncio
import logging
import time
from collections.abc import Callable
from uuid import UUID

from dutiful.core import ids
from dutiful.core.errors import DutifulError
from dutiful.delivery.base import QueueLevels
from dutiful.maintenance.bulk_step import step
from dutiful.maintenance.requeue import Kinds
from dutiful.observe.producer import Producer
from dutiful.store.dead_letters import DeadLetterStore
from dutiful.store.leadership import Survey

log = logging.getLogger("dutiful.maintenance")
RESOLVE_BATCH = 500
# At most these shares of the time go into steps and into resolving, because jobs come first.
STEP_SHARE, RESOLVE_SHARE = 0.5, 0.05


class Reviewer:
    """Calls `hint` with the queue levels that got jobs."""

    name = "reviewer"

    def __init__(
        self,
        store: DeadLetterStore,
        kinds: Kinds,
        hint: Callable[[QueueLevels], None],
        producer: Producer | None = None,
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._hint = hint
        self._producer = producer
        self._not_before = 0.0
        self._stuck: dict[UUID, str] = {}  # errors of runs, each logged once

    async def tick(self, survey: Survey) -> QueueLevels | None:
        if survey.reviewing:
            while await self.step_all():
                pass
            if time.monotonic() >= self._not_before:
                await self._resolve()
        return None

    async def step_all(self) -> bool:
        """Takes one step of each run, so that a long one does not delay a short one; returns whether it took any."""
        taken = 0
        for run in await self._store.bulk_runs(running=True):
            began = time.monotonic()
            try:
                _, levels = await step(self._store, run, self._kinds, producer=self._producer)
            except Exception as error:  # one failing run must not stop the others
                self._log_error(run.id, error)
                continue
            self._stuck.pop(run.id, None)
            taken += 1
            if levels:
                self._hint(levels)
            await asyncio.sleep((time.monotonic() - began) * (1 / STEP_SHARE - 1))
        return taken > 0

    def _log_error(self, run_id: UUID, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if self._stuck.get(run_id) != text:
            self._stuck[run_id] = text
            log.warning(
                "bulk run %s: %s; its step is repeated until it succeeds or the run is stopped",
                ids.public(run_id),
                text,
                exc_info=None if isinstance(error, DutifulError) else error,
            )

    async def _resolve(self) -> None:
        more = True
        while more:
            began = time.monotonic()
            more = await self._store.resolve_reprocessed(RESOLVE_BATCH) == RESOLVE_BATCH
            took = time.monotonic() - began
            if more:
                await asyncio.sleep(took * (1 / STEP_SHARE - 1))
        self._not_before = time.monotonic() + took * (1 / RESOLVE_SHARE - 1)
