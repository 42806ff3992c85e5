"""The contract of trees: all jobs of one correlation id, such as those of a workflow and what they have added."""

from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.states import State

FINAL = [state for state in State if state.final]


class TreeProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a tree is; times are those of its jobs."""

    correlation_id: str
    states: dict[str, int]  # how many jobs are in each state, without those that no job is in
    created_at: datetime | None = None  # the first
    started_at: datetime | None = None  # the first, of those that run or have run
    finished_at: datetime | None = None  # the last; None while not all have ended

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def ended(self) -> int:
        return sum(self.states.get(state, 0) for state in FINAL)

    @property
    def percent(self) -> int:
        """How many of a hundred jobs have ended; 100 only if all have."""
        return self.ended * 100 // self.total if self.total else 100

    @property
    def done(self) -> bool:
        return self.ended == self.total


class TreeCancel(msgspec.Struct, frozen=True):
    """One step along a tree, from its newest job to its oldest."""

    cancelled: int = 0
    requested: tuple[UUID, ...] = ()  # they run, and were asked to stop
    before: UUID | None = None  # where the next step begins; None: this was the last


class TreeStore(Protocol):
    async def progress(self, correlation_id: str, *, tenant: str | None = None) -> TreeProgress:
        """Of a tenant's own jobs, if one is given."""

    async def oldest(
        self, correlation_id: str, limit: int, *, failed: bool = False, tenant: str | None = None
    ) -> list[UUID]:
        """The first jobs of a tree, oldest first; with `failed`, the first of those that failed."""

    async def cancel(
        self,
        correlation_id: str,
        reason: str,
        before: UUID | None,
        limit: int,
        *,
        tenant: str | None = None,
        now: datetime | None = None,
    ) -> TreeCancel:
        """Cancels those of the next `limit` jobs below `before` that wait, and asks those that run to stop.

        The newest first, so that none of them is released by the end of one that it waits for.
        """


def root_of(correlation_id: str) -> UUID | None:
    """The job whose own id this correlation id is, because it was given none."""
    try:
        return UUID(correlation_id)
    except ValueError:
        return None


def tree_progress(
    correlation_id: str, rows: list[tuple[str, int, datetime, datetime | None, datetime | None]]
) -> TreeProgress:
    """From a row for each state: its name, the number of jobs, the first creation and start, the last end."""
    made = TreeProgress(
        correlation_id=correlation_id,
        states={state: count for state, count, *_ in rows},
        created_at=min((row[2] for row in rows), default=None),
        started_at=min((row[3] for row in rows if row[3] is not None), default=None),
        finished_at=max((row[4] for row in rows if row[4] is not None), default=None),
    )
    return made if made.done else msgspec.structs.replace(made, finished_at=None)
