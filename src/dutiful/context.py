"""What a handler can use: the contract that the worker implements."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

from dutiful.core.duration import Duration
from dutiful.core.job import JobRecord
from dutiful.core.states import State

if TYPE_CHECKING:
    from dutiful.workflow.handle import SyncWorkflowHandle, WorkflowHandle

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
ItemName = str | int


class JobTransaction(Protocol):
    """The handler's own writes, which commit together with the job's completion, or not at all."""

    async def execute(self, statement: str, *args: Any) -> None:
        """Runs a statement (on SQLite: when the block ends, in one short write transaction)."""

    @property
    def connection(self) -> Any:
        """The asyncpg connection; SQLite has none."""

    def complete(self, result: Any) -> None:
        """Sets the job's result; leaving the block settles the job."""


class Lock(AbstractAsyncContextManager["Lock"], AbstractContextManager["Lock"], Protocol):
    """A named lock: `async with`, or `with` in a blocking handler's thread."""


class BreakerBlock(AbstractAsyncContextManager["BreakerBlock"], AbstractContextManager["BreakerBlock"], Protocol):
    """A call under a breaker: `async with`, or `with` in a blocking handler's thread."""


class Timeout(AbstractAsyncContextManager["Timeout"], AbstractContextManager["Timeout"], Protocol):
    """A part of a handler with a time limit: `async with`, or `with` in a blocking handler's thread."""


class Items(Protocol):
    """The items that a job works through, each with its result."""

    def start(self, name: ItemName) -> None:
        """Adds an item that was found only now."""

    def complete(self, name: ItemName) -> None: ...
    def fail(self, name: ItemName, error: BaseException | str) -> None: ...
    def skip(self, name: ItemName, reason: str) -> None: ...
    def working(self, name: ItemName) -> AbstractContextManager[None]:
        """Marks the item when the block ends: completed, skipped by Skip, or failed; the error is raised again."""

    @property
    def completed(self) -> tuple[ItemName, ...]: ...
    @property
    def failed(self) -> Mapping[ItemName, str]: ...
    @property
    def skipped(self) -> Mapping[ItemName, str]: ...
    @property
    def in_progress(self) -> tuple[ItemName, ...]: ...


class Parents(tuple[JobRecord, ...]):
    """The jobs that a job depends on, as they ended."""

    __slots__ = ()

    @property
    def completed(self) -> list[JobRecord]:
        """Those that have a result, also with errors."""
        return [job for job in self if job.state in (State.COMPLETED, State.COMPLETED_WITH_ERRORS)]

    @property
    def failed(self) -> list[JobRecord]:
        return [job for job in self if job.state is State.FAILED]

    @property
    def cancelled(self) -> list[JobRecord]:
        return [job for job in self if job.state is State.CANCELLED]


class Attempted(Protocol):
    """What every handler can read of a job, whether it gets jobs one by one or in batches."""

    @property
    def job_id(self) -> UUID: ...
    @property
    def public_id(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int:
        """This attempt's number; the first is 1."""

    @property
    def max_attempts(self) -> int: ...
    @property
    def correlation_id(self) -> str: ...
    @property
    def parent_id(self) -> UUID | None: ...
    @property
    def tenant(self) -> str | None: ...
    @property
    def subject(self) -> Mapping[str, Any]: ...
    @property
    def options(self) -> Mapping[str, Any]:
        """What was stored with the job besides its payload: `scheduled_for`, `unique`, `webhook` …"""


class Context(Attempted, Protocol):
    """One attempt of one job, as its handler sees it."""

    @property
    def kind(self) -> str: ...
    @property
    def payload(self) -> Mapping[str, Any]: ...
    @property
    def cancelled(self) -> bool:
        """Whether the job should stop: cancelled, past its timeout, or without its claim. For loops in threads."""

    def check(self) -> None:
        """Raises if the job should stop; a long-running blocking handler calls it regularly."""

    def timeout(self, length: Duration) -> Timeout:
        """Limits the time of a block: `async with ctx.timeout("30s"):`, or `with` in a thread; blocks may be nested.

        A block that takes longer is stopped and raises TimeoutExceeded; unhandled, that is a timeout of the job. Where
        nothing can stop it, the attempt ends without it, as one that exceeds its kind's timeout does.
        """

    @property
    def phase(self) -> str | None:
        """The pipeline's current phase; None in a job without phases."""

    @property
    def phase_attempt(self) -> int | None:
        """How often this phase was started; its own `retry` counts this instead of the job's attempts."""

    def result(self, phase: str) -> Any:
        """The result of an earlier phase; UsageError if it has not ended."""

    def results(self) -> Mapping[str, Any]:
        """The results of all phases so far, by name."""

    def progress(self, percent: float | None = None, message: str | None = None) -> None:
        """Reports the progress of the job or its phase; stored a few times a second at most, the last one always."""

    def items(self, names: Iterable[ItemName]) -> Items:
        """Items to mark by hand: each is in progress until it is marked."""

    async def each(
        self,
        items: Iterable[T],
        work: Callable[[T], Awaitable[Any]],
        *,
        concurrency: int = 8,
        name: Callable[[T], ItemName] | None = None,
    ) -> Items:
        """Calls `work` for each item, several at a time; the failure of one does not stop the others.

        If some fail, the job ends as completed_with_errors; if all fail, it fails. Raise Skip to skip an item. Texts
        and numbers are their own names; other items are named by their position (0, 1, …) unless `name` is given.
        """

    @overload
    async def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `function` and stores its result as JSON; later attempts return that without another call.

        A plain function is called in a thread. The result has the type that the function declares. A worker that dies
        after the call and before its result is stored calls again: give the service an idempotency key.
        """

    def step_sync(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same in a blocking handler, in whose thread the plain function is called."""

    async def sleep(self, length: Duration, *, name: str) -> None:
        """Ends the attempt until the time is over, unless it is; then the handler runs again from the top.

        It counts no attempt and needs no slot, and the time is stored, so that it outlives a crash.
        """

    def sleep_sync(self, length: Duration, *, name: str) -> None: ...

    async def wait_for_event(
        self, event: str, key: str, *, timeout: Duration | None = None, name: str | None = None
    ) -> Any:
        """Returns the data of the first event with this name and key that the job has not got yet.

        If there is none, the attempt ends, as for a sleep, until one is sent; EventTimeout if that takes longer than
        `timeout`. The step's name is the event's, unless `name` is given.
        """

    def wait_for_event_sync(
        self, event: str, key: str, *, timeout: Duration | None = None, name: str | None = None
    ) -> Any: ...

    def lock(self, namespace: str, key: ItemName) -> Lock:
        """Holds the lock (namespace, key) exclusively in the fleet during a block; waits as long as necessary.

        LockLost ends the block if the lock is lost. Take several locks in the same order everywhere.
        """

    def breaker(self, name: str) -> BreakerBlock:
        """Puts a block that calls a service under a breaker; its result counts for the whole fleet.

        Raises BreakerOpen before the block begins if too many calls have failed lately; unhandled, the job waits until
        it may try, and no attempt is counted. Blocks of the same name may be nested; each call counts once, by the
        innermost one.
        """

    async def parents(self) -> Parents:
        """The jobs that it depends on, as they ended, with results and errors; the oldest first."""

    def parents_sync(self) -> Parents: ...

    async def spawn(self, *calls: Any, key: str | None = None) -> "WorkflowHandle":
        """Adds jobs: calls, chains and groups. What waits for this job waits for them too, by the same policy.

        With a `key`, a next attempt of this job adds only those that no attempt has spawned with it: a call is the same
        if its kind and arguments are. Of equal calls, as many are added as one attempt spawns.
        """

    def spawn_sync(self, *calls: Any, key: str | None = None) -> "SyncWorkflowHandle": ...

    def transaction(self) -> AbstractAsyncContextManager[JobTransaction]:
        """Commits the handler's writes together with the job's completion; the last thing that a handler does."""

    async def complete_in(self, session: Any, result: Any = None) -> None:
        """Completes the job in the open transaction of the handler's own async session, whose commit settles it."""

    def complete_in_sync(self, session: Any, result: Any = None) -> None: ...


class BatchJob(Attempted, Protocol[T_co]):
    """One job of a batch, as its handler sees it."""

    @property
    def payload(self) -> T_co:
        """Its payload, with the declared type."""

    @property
    def cancelled(self) -> bool:
        """Whether this job need not be done any more: it, or the whole batch, was cancelled or lost its claim."""


class BatchContext(Protocol):
    """One batch of jobs, as its handler sees it; what belongs to one job is in `jobs`."""

    @property
    def kind(self) -> str: ...
    @property
    def jobs(self) -> Sequence[BatchJob[Any]]:
        """The jobs of the batch, in the order of the handler's list."""

    @property
    def tenant(self) -> str | None:
        """That of its jobs; None if they have none, or the kind has batches across tenants."""

    @property
    def cancelled(self) -> bool:
        """Whether the whole batch should stop. For loops in threads."""

    def check(self) -> None:
        """Raises if the whole batch should stop; a long-running blocking handler calls it regularly."""

    def timeout(self, length: Duration) -> Timeout:
        """Limits the time of a block, as Context.timeout does."""

    def lock(self, namespace: str, key: ItemName) -> Lock:
        """Holds a named lock during a block, as Context.lock does."""

    def breaker(self, name: str) -> BreakerBlock:
        """Puts a block that calls a service under a breaker, as Context.breaker does."""


CURRENT: ContextVar[Context | None] = ContextVar("dutiful_current_job", default=None)
"""The job whose handler is running, if any; jobs that it enqueues inherit its correlation id and parent."""


@dataclass(frozen=True, slots=True)
class _Inject:
    """The default of a parameter that the worker replaces by a shared resource."""

    name: str


def Inject(name: str) -> Any:  # noqa: N802 - reads as a declaration: `db: Pool = Inject("db")`
    """Gives a handler's parameter the shared resource registered under `name` with @app.resource."""
    return _Inject(name)


def injected(default: Any) -> str | None:
    """The resource's name, if a parameter's default asks for one."""
    return default.name if isinstance(default, _Inject) else None
