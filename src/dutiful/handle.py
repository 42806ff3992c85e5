"""A job that was enqueued, as its caller holds it, and who enqueues it."""

from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from dutiful.core.duration import Duration
from dutiful.core.job import JobRecord, NewJob

if TYPE_CHECKING:
    from dutiful.settings import Settings

R_co = TypeVar("R_co", covariant=True)


class Handle(Protocol[R_co]):
    """A job that was enqueued."""

    @property
    def id(self) -> UUID: ...
    @property
    def public_id(self) -> str: ...
    @property
    def created(self) -> bool:
        """False if a job of the same id or unique key was there already: then this is that one."""
        ...

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the job is final; JobFailed, JobCancelled or ResultTimeout if there is no result."""
        ...

    async def cancel(self, reason: str = "cancelled") -> bool: ...

    async def record(self) -> JobRecord:
        """The job with where it stands now."""
        ...


class SyncHandle(Protocol[R_co]):
    @property
    def id(self) -> UUID: ...
    @property
    def public_id(self) -> str: ...
    @property
    def created(self) -> bool: ...

    def result(self, timeout: Duration | None = None) -> R_co: ...

    def cancel(self, reason: str = "cancelled") -> bool: ...

    def record(self) -> JobRecord: ...


class Enqueuer(Protocol):
    """What a kind needs of its app."""

    @property
    def settings(self) -> "Settings": ...

    def new_id(self) -> UUID: ...

    async def submit(self, job: NewJob, within: Any) -> Handle[Any]: ...

    async def submit_many(self, jobs: list[NewJob], within: Any) -> list[Handle[Any]]: ...

    def submit_sync(self, job: NewJob, within: Any) -> SyncHandle[Any]: ...

    def submit_many_sync(self, jobs: list[NewJob], within: Any) -> list[SyncHandle[Any]]: ...
