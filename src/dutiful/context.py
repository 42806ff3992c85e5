"""What a handler may touch: the contract; the worker implements it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar
from uuid import UUID

T = TypeVar("T")
ItemName = str | int


class JobTransaction(Protocol):
    """The handler's own writes; they commit together with the job's completion, or not at all."""

    async def execute(self, statement: str, *args: Any) -> None:
        """Run a statement (on SQLite: when the block ends, in one short write transaction)."""

    @property
    def connection(self) -> Any:
        """The asyncpg connection, for everything else; on SQLite there is none."""
        ...

    def complete(self, result: Any) -> None:
        """Say what the job's result is; leaving the block settles it."""


class Lock(AbstractAsyncContextManager["Lock"], AbstractContextManager["Lock"], Protocol):
    """A named lock: `async with`, or in a blocking handler's thread plain `with`."""


class BreakerBlock(AbstractAsyncContextManager["BreakerBlock"], AbstractContextManager["BreakerBlock"], Protocol):
    """A call under a breaker: `async with`, or in a blocking handler's thread plain `with`."""


class Items(Protocol):
    """The things that a job works through, each with what became of it."""

    def start(self, name: ItemName) -> None:
        """One more item, found only now."""

    def complete(self, name: ItemName) -> None: ...

    def fail(self, name: ItemName, error: BaseException | str) -> None: ...

    def skip(self, name: ItemName, reason: str) -> None: ...

    def working(self, name: ItemName) -> AbstractContextManager[None]:
        """Mark the item when the block ends: completed, skipped by Skip, or failed, which is raised again."""
        ...

    @property
    def completed(self) -> tuple[ItemName, ...]: ...

    @property
    def failed(self) -> Mapping[ItemName, str]: ...

    @property
    def skipped(self) -> Mapping[ItemName, str]: ...

    @property
    def in_progress(self) -> tuple[ItemName, ...]: ...


class Context(Protocol):
    """One attempt at one job, as its handler sees it."""

    @property
    def job_id(self) -> UUID: ...

    @property
    def public_id(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def queue(self) -> str: ...

    @property
    def attempt(self) -> int:
        """This attempt's number; the first is 1."""
        ...

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
    def payload(self) -> Mapping[str, Any]: ...

    @property
    def options(self) -> Mapping[str, Any]:
        """What was stored with the job beside its payload: `scheduled_for`, `unique`, `webhook` …"""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the job is to stop: cancelled, past its timeout, or its claim is lost. For loops in threads."""
        ...

    def check(self) -> None:
        """Raise if the job is to stop; a long-running blocking handler calls it now and then."""

    @property
    def phase(self) -> str | None:
        """The pipeline's phase that runs now; none in a job without phases."""
        ...

    @property
    def phase_attempt(self) -> int | None:
        """How often this phase has begun, which a `retry` of its own counts instead of the job's attempts."""
        ...

    def result(self, phase: str) -> Any:
        """What an earlier phase has returned; UsageError if it has not ended."""
        ...

    def results(self) -> Mapping[str, Any]:
        """What every phase so far has returned, by name."""
        ...

    def progress(self, percent: float | None = None, message: str | None = None) -> None:
        """Say how far the job, or its phase, has come; written a few times a second at most, the last word always."""

    def items(self, names: Iterable[ItemName]) -> Items:
        """Work through items of your own accord: each is in progress until it is marked."""
        ...

    async def each(
        self,
        items: Iterable[T],
        work: Callable[[T], Awaitable[Any]],
        *,
        concurrency: int = 8,
        name: Callable[[T], ItemName] | None = None,
    ) -> Items:
        """Do `work` for each item, several at a time; one's failure stops no other.

        Some failed: the job ends as completed_with_errors. All failed: it has failed. Skip, raised, skips an item.
        Texts and numbers are their own names, other items are called by their place (0, 1, …) unless `name` says how.
        """
        ...

    def lock(self, namespace: str, key: ItemName) -> Lock:
        """Be the only one in the fleet to hold (namespace, key) for the length of a block; waits, never fails.

        LockLost ends the block if the lock is lost. Take several in one order everywhere.
        """
        ...

    def breaker(self, name: str) -> BreakerBlock:
        """Call a service that may fail, for the length of a block; the whole fleet learns how that ended.

        BreakerOpen, raised before the block begins, if too many calls have failed lately: left alone, it lets the job
        wait until it may try, and no attempt is spent. So does a block inside another of the same name; then each call
        counts once, by the innermost one.
        """
        ...

    def transaction(self) -> AbstractAsyncContextManager[JobTransaction]:
        """The last thing a handler does: its writes and the job's completion commit together."""
        ...

    async def complete_in(self, session: Any, result: Any = None) -> None:
        """Complete the job in the transaction open on your own async session; your commit settles it."""

    def complete_in_sync(self, session: Any, result: Any = None) -> None: ...


CURRENT: ContextVar[Context | None] = ContextVar("dutiful_current_job", default=None)
"""The job whose handler is running, if any: what it enqueues inherits its correlation and parent."""


class _Inject:
    """Stands as a parameter's default until the worker puts the shared resource in its place."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Inject({self.name!r})"


def Inject(name: str) -> Any:  # noqa: N802 - reads as a declaration: `db: Pool = Inject("db")`
    """Give a handler's parameter the shared resource registered under `name` with @app.resource."""
    return _Inject(name)


def injected(default: Any) -> str | None:
    """The resource's name, if a parameter's default asks for one."""
    return default.name if isinstance(default, _Inject) else None
