"""The contract of a store whose database runs supervised processes, which `dutiful supervisor new` generates."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable
from uuid import UUID

import msgspec


class Supervisor(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of process, and how many there are, None if this role may not read its tables.

    Of many processes only the newest are counted; then `counted_all` is False.
    """

    name: str  # with its schema, as SQL spells it
    channel: str
    max_attempts: int
    base: timedelta
    keys: Sequence[str]
    running: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    counted_all: bool = True


class ProcessSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One task, in a list."""

    task_id: int
    keys: Mapping[str, str]
    created_at: datetime
    attempts: int
    failures: int
    succeeded: bool
    final_error: str | None  # None: it has not failed for good
    checked: bool  # a check is queued or running


class ProcessPage(msgspec.Struct, frozen=True):
    """Some processes of a supervisor, the newest first.

    `searched_all` is False if older ones could be stuck, but there were too many to search.
    """

    supervisor: Supervisor
    processes: Sequence[ProcessSummary]
    searched_all: bool = True


class ProcessAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, its outcome and its job; no `job_state`: the job is gone."""

    attempt_id: int
    job_id: UUID
    created_at: datetime
    succeeded_at: datetime | None
    failed_at: datetime | None
    error_message: str | None
    job_state: str | None
    job_error: str | None


class ProcessCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the supervisor itself."""

    job_id: UUID
    state: str
    run_at: datetime | None
    error: str | None


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One task with all of its facts, in the order of time."""

    supervisor: Supervisor
    task_id: int
    keys: Mapping[str, str]
    created_at: datetime
    attempts: Sequence[ProcessAttempt]
    final_error: str | None
    final_at: datetime | None
    checks: Sequence[ProcessCheck]  # queued and running ones, and the last that has ended
    check_sql: str  # a statement that queues a check, if none is queued


@runtime_checkable
class SupervisorStore(Protocol):
    async def all(self) -> list[Supervisor]:
        """All supervisors of the database by name; those whose owner may not enqueue are left out."""

    async def processes(self, name: str, *, stuck: bool = False, limit: int = 50) -> ProcessPage | None:
        """The newest processes of a supervisor, None if there is none of that name.

        `stuck`: those that failed, have spent their attempts, or have no check. Any number may have succeeded since;
        of many that have not, the newest are searched.
        Raises UsageError if this role may not read the tables, as `find` does.
        """

    async def find(self, name: str, task_id: int) -> Process | None:
        """One process, None if there is none."""
