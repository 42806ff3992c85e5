"""What a handler may touch: the contract; the worker implements it."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Protocol
from uuid import UUID


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
    def cancelled(self) -> bool:
        """Whether the job is to stop: cancelled, past its timeout, or its claim is lost. For loops in threads."""
        ...

    def check(self) -> None:
        """Raise if the job is to stop; a long-running blocking handler calls it now and then."""

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
