"""The contract of what people do to jobs, queues, kinds, lanes and schedules."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.transitions import State


class CancelResult(msgspec.Struct, frozen=True):
    """`state` is where the job stands now; `requested` says that a running one has been asked to stop."""

    state: State
    changed: bool
    requested: bool = False


class PauseScope(StrEnum):
    QUEUE = "queue"
    KIND = "kind"
    LANE = "lane"


EVERY_LANE = "*"  # the name of a pause that holds for all lanes, even those that nobody has yet


class Pause(msgspec.Struct, frozen=True):
    scope: PauseScope
    name: str
    since: datetime
    by: str | None = None
    reason: str | None = None

    @property
    def mark(self) -> str:
        """Tells it from any other, one of the same name before or after it included."""
        return f"{self.scope} {self.name} {self.since.isoformat()}"


class Acts(Protocol):
    """What people do to jobs."""

    async def cancel(self, job_id: UUID, reason: str, *, now: datetime | None = None) -> CancelResult | None:
        """Cancel a waiting job, or ask a running one to stop; None if there is no such job."""
        ...

    async def bury(self, job_id: UUID, error: Mapping[str, Any], *, now: datetime | None = None) -> bool:
        """Make a waiting job failed, with its dead letter; False if it does not wait, so look at it again."""
        ...

    async def expedite(self, job_id: UUID, *, now: datetime | None = None) -> State | None:
        """Make a job due now that is scheduled, or that a breaker has refused; returns where it stands then."""
        ...

    async def pause(self, pause: Pause, *, now: datetime | None = None) -> bool: ...

    async def resume(self, scope: PauseScope, name: str) -> bool: ...

    async def enable_schedule(self, name: str, enabled: bool) -> bool: ...

    async def remove_schedule(self, name: str) -> bool:
        """Forget a schedule that no code declares any more; False if there is none."""
        ...
