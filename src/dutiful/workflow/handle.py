"""A workflow that was enqueued."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dutiful.core.duration import Duration
from dutiful.core.errors import UsageError
from dutiful.handle import Enqueuer, Handle, SyncHandle
from dutiful.store.trees import TreeProgress

if TYPE_CHECKING:
    from dutiful.workflow.graph import Node

R = TypeVar("R")


class WorkflowHandle:
    """A workflow that was enqueued: `handle[node]` is the handle of one of its jobs."""

    def __init__(
        self,
        enqueuer: Enqueuer,
        correlation_id: str,
        tenant: str | None,
        handles: "Mapping[Node[Any], Handle[Any]]",
        tails: "Sequence[Node[Any]]",
    ) -> None:
        """`tenant`: another one may use the same correlation id."""
        self.correlation_id = correlation_id
        self._enqueuer = enqueuer
        self._tenant = tenant
        self._handles = handles
        self._tails = tails

    @property
    def jobs(self) -> list[Handle[Any]]:
        """Its jobs, each after those that it depends on."""
        return list(self._handles.values())

    @property
    def last(self) -> Handle[Any]:
        """The job that runs last; UsageError if there are several."""
        return self._handles[only(self._tails)]

    def __getitem__(self, node: "Node[R]") -> Handle[R]:
        return self._handles[node]

    async def result(self, timeout: Duration | None = None) -> Any:
        """Waits for the job that runs last, and returns its result."""
        return await self.last.result(timeout)

    async def progress(self) -> TreeProgress:
        """How many of its jobs are in which state, with those that they have added."""
        return await self._enqueuer.tree_progress(self.correlation_id, tenant=self._tenant)

    async def cancel(self, reason: str = "cancelled") -> int:
        """Cancels all of its jobs that have not ended; returns how many, with those that were asked to stop."""
        return await self._enqueuer.cancel_tree(self.correlation_id, reason, tenant=self._tenant)

    def __repr__(self) -> str:
        return f"<workflow {self.correlation_id}: {len(self._handles):,} jobs>"


class SyncWorkflowHandle:
    """A workflow that was enqueued from blocking code."""

    def __init__(
        self, correlation_id: str, handles: "Mapping[Node[Any], SyncHandle[Any]]", tails: "Sequence[Node[Any]]"
    ) -> None:
        self.correlation_id = correlation_id
        self._handles = handles
        self._tails = tails

    @property
    def jobs(self) -> list[SyncHandle[Any]]:
        return list(self._handles.values())

    @property
    def last(self) -> SyncHandle[Any]:
        return self._handles[only(self._tails)]

    def __getitem__(self, node: "Node[R]") -> SyncHandle[R]:
        return self._handles[node]

    def result(self, timeout: Duration | None = None) -> Any:
        return self.last.result(timeout)


def only(tails: "Sequence[Node[Any]]") -> "Node[Any]":
    if len(tails) != 1:
        raise UsageError(
            f"{len(tails)} jobs of the workflow run last: ask for one of them, as in handle[node].result()"
        )
    return tails[0]
