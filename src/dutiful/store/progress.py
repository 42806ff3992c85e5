"""The contract of phases and progress of running jobs. Only the holder of a claim may write them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import PhaseRecord, PhaseState


class PhaseMark(msgspec.Struct, frozen=True, kw_only=True):
    """A phase begins (RUNNING, which counts an attempt of it) or ends. JSON fields hold text."""

    job_id: UUID
    claim_id: int
    name: str
    position: int  # the first is 0
    state: PhaseState
    result: str | None = None
    error: str | None = None
    anew: bool = False  # deletes all phases of this job first: a retry that starts over
    # The last report before the end, if it was not stored yet: a phase keeps this, or what the store had last.
    progress: str | None = None


class ProgressReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole progress of a job: each report replaces the previous one. JSON fields hold text."""

    job_id: UUID
    claim_id: int
    phase: str | None = None
    percent: float | None = None  # of the phase, or of a job that has none
    overall: int | None = None  # of the job
    message: str | None = None
    items: str | None = None  # {"total", "in_progress", "completed", "skipped", "failed"}, see core.items

    def as_json(self) -> str:
        """What a phase keeps of it."""
        kept = {"phase": self.phase, "percent": self.percent, "overall": self.overall, "message": self.message}
        items = None if self.items is None else msgspec.Raw(self.items.encode())
        return msgspec.json.encode({**kept, "items": items}).decode()


class ProgressStore(Protocol):
    async def report(
        self, reports: Sequence[ProgressReport], marks: Sequence[PhaseMark] = (), *, now: datetime | None = None
    ) -> frozenset[int]:
        """Writes marks in order, and reports, in one transaction; returns claims not held, which are skipped.

        A claim with marks counts as not held once its cancellation was requested.
        """

    async def phases(self, job_id: UUID) -> list[PhaseRecord]:
        """The phases that have begun, or were cancelled before they began, by position."""
