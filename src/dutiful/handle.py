"""Protocols: the handle of an enqueued job, and the app that enqueues."""

from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from dutiful.core.duration import Duration
from dutiful.core.job import JobRecord, NewJob

if TYPE_CHECKING:
    from dutiful.declare.attempt_hook import AttemptHook
    from dutiful.payload.key_ring import KeyRing
    from dutiful.settings import Settings
    from dutiful.store.trees import TreeProgress

R_co = TypeVar("R_co", covariant=True)


class Handle(Protocol[R_co]):
    """A job that was enqueued."""

    @property
    def id(self) -> UUID: ...
    @property
    def public_id(self) -> str: ...
    @property
    def created(self) -> bool:
        """False if a job with the same id or unique key existed already: then this is that job."""

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Waits until the job is final; raises JobFailed, JobCancelled or ResultTimeout if there is no result."""

    async def cancel(self, reason: str = "cancelled") -> bool: ...
    async def record(self) -> JobRecord:
        """The job in its current state."""


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
    """What a kind needs from its app."""

    attempt_hooks: "tuple[AttemptHook, ...]"

    @property
    def settings(self) -> "Settings": ...
    @property
    def key_ring(self) -> "KeyRing | None":
        """The keys of encrypted kinds, if this process has any."""

    def new_id(self) -> UUID: ...
    async def submit(self, job: NewJob, within: Any) -> Handle[Any]: ...
    async def submit_many(self, jobs: list[NewJob], within: Any) -> list[Handle[Any]]: ...
    def submit_sync(self, job: NewJob, within: Any) -> SyncHandle[Any]: ...
    def submit_many_sync(self, jobs: list[NewJob], within: Any) -> list[SyncHandle[Any]]: ...
    async def tree_progress(self, correlation_id: str, *, tenant: str | None = None) -> "TreeProgress": ...
    async def cancel_tree(self, correlation_id: str, reason: str, *, tenant: str | None = None) -> int: ...
