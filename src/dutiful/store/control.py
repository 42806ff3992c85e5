"""The contract of what people do to jobs, queues, kinds, lanes and schedules."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.states import State


class CancelResult(msgspec.Struct, frozen=True):
    """`state` is where the job stands now; `requested` says that a running one has been asked to stop."""

    state: State
    changed: bool
    requested: bool = False


class PauseScope(StrEnum):
    QUEUE = "queue"
    KIND = "kind"
    LANE = "lane"


EVERY_LANE = "*"  # the name of a pause that holds for all lanes, also those of workers to come


class Pause(msgspec.Struct, frozen=True):
    scope: PauseScope
    name: str
    since: datetime
    by: str | None = None
    reason: str | None = None

    @property
    def mark(self) -> str:
        """Identifies it among all others, also those of the same name before and after it."""
        return f"{self.scope} {self.name} {self.since.isoformat()}"


class ControlStore(Protocol):
    """What operators do to jobs, kinds, queues and lanes."""

    async def cancel(self, job_id: UUID, reason: str, *, now: datetime | None = None) -> CancelResult | None:
        """Cancel a waiting job, or ask a running one to stop; None if there is no such job."""

    async def fail(self, job_id: UUID, error: Mapping[str, Any], *, now: datetime | None = None) -> bool:
        """Make a waiting job failed, with its dead letter; False if it does not wait, so look at it again."""

    async def run_now(self, job_id: UUID, *, now: datetime | None = None) -> State | None:
        """Make a job due now that is scheduled, or that a breaker has refused; returns where it stands then."""

    async def pause(self, pause: Pause, *, now: datetime | None = None) -> bool: ...

    async def resume(self, scope: PauseScope, name: str) -> bool: ...

    async def pauses(self) -> list[Pause]: ...
