"""The states of a pipeline's phases, and the progress of the whole pipeline."""

import math
from enum import StrEnum

from dutiful.core.errors import UsageError


class PhaseState(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    SKIPPED = "skipped"  # by its condition
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # its worker died or stopped, or it snoozed; it runs again from its start
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether a retry that resumes skips it."""
        return self in (PhaseState.COMPLETED, PhaseState.SKIPPED)


def check_percent(percent: float) -> float:
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
        raise UsageError(f"progress of {percent!r} %: it must be a number from 0 to 100")
    return percent


def overall(position: int, percent: float, phases: int) -> int:
    """The percentage of a pipeline whose phase at `position` (the first is 0) is at `percent`; halves round up."""
    return math.floor((position * 100 + percent) / phases + 0.5)
