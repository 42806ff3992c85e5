"""The contract of operators' actions: cancel, fail and run jobs; pause and resume queues, kinds and lanes."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.states import State


class CancelResult(msgspec.Struct, frozen=True):
    """`state` is the job's state now; `requested`: the job runs, and has been asked to stop."""

    state: State
    changed: bool
    requested: bool = False


class PauseScope(StrEnum):
    QUEUE = "queue"
    KIND = "kind"
    LANE = "lane"


EVERY_LANE = "*"  # the name of a pause of all lanes, including those of future workers


class Pause(msgspec.Struct, frozen=True):
    scope: PauseScope
    name: str
    since: datetime
    by: str | None = None
    reason: str | None = None

    @property
    def mark(self) -> str:
        """Unique among all pauses, including earlier and later ones of the same name."""
        return f"{self.scope} {self.name} {self.since.isoformat()}"


class ControlStore(Protocol):
    """Operators' actions on jobs, queues, kinds and lanes."""

    async def cancel(self, job_id: UUID, reason: str, *, now: datetime | None = None) -> CancelResult | None:
        """Cancels a waiting job, or asks a running one to stop; None if there is no such job."""

    async def fail(
        self, job_id: UUID, error: Mapping[str, Any], *, attempt: int | None = None, now: datetime | None = None
    ) -> bool:
        """Fails a waiting job and writes its dead letter; False if the job does not wait.

        With `attempt`, only if it has had so many attempts, and this failure counts as one more.
        """

    async def retry(
        self, job_id: UUID, error: Mapping[str, Any], *, attempt: int, delay: timedelta, now: datetime | None = None
    ) -> State | None:
        """Records a failed attempt of a waiting job that has had `attempt`, and lets it wait for `delay`.

        Returns its new state; None: it does not wait, or has had more attempts meanwhile. A job that waits for others,
        or for a time that comes later, goes on to do so.
        """

    async def run_now(self, job_id: UUID, *, now: datetime | None = None) -> State | None:
        """Makes a job due now that is scheduled, or that a breaker has rejected; returns its new state."""

    async def pause(self, pause: Pause, *, now: datetime | None = None) -> bool: ...

    async def resume(self, scope: PauseScope, name: str) -> bool: ...

    async def pauses(self) -> list[Pause]: ...
