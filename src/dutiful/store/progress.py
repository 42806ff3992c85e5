"""The contract by which a running job's phases and progress are kept. Only the holder of a claim may write them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import PhaseRecord
from dutiful.core.pipeline import PhaseState


class PhaseMark(msgspec.Struct, frozen=True, kw_only=True):
    """A phase begins (RUNNING, which counts an attempt of it) or ends. JSON fields hold text."""

    job_id: UUID
    claim_id: int
    name: str
    position: int  # the first is 0
    state: PhaseState
    result: str | None = None
    error: str | None = None
    anew: bool = False  # forget every phase of this job first: a retry that starts over


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job has come, whole: each report takes the place of the one before. JSON fields hold text."""

    job_id: UUID
    claim_id: int
    phase: str | None = None
    percent: float | None = None  # of the phase, or of a job that has none
    overall: int | None = None  # of the job
    message: str | None = None
    items: str | None = None  # {"total", "in_progress", "completed", "skipped", "failed"}, see core.items


class ProgressStore(Protocol):
    async def report(
        self, reports: Sequence[Report], marks: Sequence[PhaseMark] = (), *, now: datetime | None = None
    ) -> frozenset[int]:
        """Write them in one transaction, marks in their order; returns the claims not held, for which nothing was."""

    async def phases(self, job_id: UUID) -> list[PhaseRecord]:
        """Those that have begun or were cancelled before they could, by position."""
