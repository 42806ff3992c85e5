"""Runs the batches of a lane: gathers jobs in a slot, has the handler called, and settles each job by itself."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from dutiful.core.job import Claim
from dutiful.core.outcome import Failed, Released
from dutiful.core.retry.error_info import describe
from dutiful.declare.batch import BatchSpec
from dutiful.kind import Kind
from dutiful.store.control import Pause
from dutiful.worker.batches import Batch, Gathering
from dutiful.worker.config import WorkerConfig
from dutiful.worker.counters import Timing
from dutiful.worker.executor.attempt import Executor
from dutiful.worker.executor.outcomes import Settlement
from dutiful.worker.leases import Leases
from dutiful.worker.settler import Settler
from dutiful.worker.slots import Slot


class BatchRunner:
    def __init__(
        self,
        config: WorkerConfig,
        lane: str,
        gathering: Gathering,
        leases: Leases,
        executor: Executor,
        settler: Settler,
        take_buffered: Callable[[Callable[[Claim], bool]], None],
        wake: Callable[[], None],
        free: Callable[[Claim, Timing | None], None],
    ) -> None:
        """`take_buffered` offers a batch the claims that the lane has in hand, `wake` lets it claim others, and `free`
        ends the turn of the first job, which is one job to the lane, however many have joined it."""
        self._lane = lane
        self._gathering = gathering
        self._leases = leases
        self._executor = executor
        self._settler = settler
        self._take_buffered = take_buffered
        self._wake = wake
        self._free = free
        self._lease = config.settings.lease.total_seconds()
        self._cancel_grace = config.settings.cancel_grace.total_seconds()
        self._open = True

    def close(self) -> None:
        """Releases what gathers; what runs continues."""
        self._open = False
        self._gathering.start_all()

    def release_paused(self, pauses: Sequence[Pause]) -> None:
        """Releases the jobs of batches that may not start now; what runs continues."""
        for batch in self._gathering.paused(self._lane, pauses):
            self._release(batch)
            batch.start()

    async def run(self, first: Claim, kind: Kind[Any, Any], spec: BatchSpec, slot: Slot) -> bool:
        """Gathers a batch in the slot, and runs it; whether the slot continues."""
        if slot.lane != self._lane:
            spec = replace(spec, linger=timedelta(0))  # the slot is lent, and its lane may need it soon
        batch = slot.batch = Batch(first, spec, slot, self._settler.settle, self._cancel_grace)
        try:
            await self._gather(batch, slot)
            claimed_at = self._drop_lost(batch)
            outcomes: Mapping[int, Settlement] = {}
            try:
                if batch.claims:
                    outcomes = await self._executor.run_batch(batch, kind, slot)
            except Exception as error:  # a bug of Dutiful ends this worker, and the attempts count
                if not slot.abandoned:
                    failed = Failed(describe(error), type(error))
                    self._settle(batch, dict.fromkeys(claimed_at, failed), slot, claimed_at)
                raise
            if slot.abandoned:
                for claim in batch.claims:
                    self._settler.settle_late(claim, outcomes[claim.claim_id])
                return False
            self._settle(batch, outcomes, slot, claimed_at)
            return not slot.closing
        finally:
            batch.close()
            slot.batch = None

    async def _gather(self, batch: Batch, slot: Slot) -> None:
        """Lets jobs join it that are in hand, and those that are claimed until it starts."""
        if batch.gathers:
            self._take_buffered(batch.add)
        if batch.gathers:
            with slot.absorb_cancellation(), self._gathering.adding(batch):
                self._wake()
                await batch.gather()
        if not self._open:
            self._release(batch)

    def _drop_lost(self, batch: Batch) -> dict[int, float]:
        """Releases jobs that may run elsewhere by now; returns by claim when the others were claimed."""
        now, claimed_at = time.monotonic(), {}
        for claim in list(batch.claims):
            since = self._leases.valid_since(claim.claim_id, now, self._lease)
            if since is None:
                batch.claims.remove(claim)
                self._settler.settle(claim, Released(began=False))
            else:
                claimed_at[claim.claim_id] = since
        return claimed_at

    def _release(self, batch: Batch) -> None:
        while batch.claims:
            self._settler.settle(batch.claims.pop(), Released(began=False))

    def _settle(
        self, batch: Batch, outcomes: Mapping[int, Settlement], slot: Slot, claimed_at: Mapping[int, float]
    ) -> None:
        for claim in batch.claims:
            self._settler.settle(claim, outcomes[claim.claim_id], slot.timing(claimed_at[claim.claim_id]))
        batch.claims.clear()
        self._free(batch.first, slot.timing(0.0) if outcomes else None)
