"""The contract of a service: a duty that one elected process does, and that is correct when two do it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, runtime_checkable
from uuid import UUID

from dutiful.delivery import Lines
from dutiful.duties import Survey


class Service(Protocol):
    """One duty."""

    @property
    def name(self) -> str: ...

    async def tick(self, survey: Survey) -> Lines | None:
        """Do what is due, in bounded steps; returns the lines that got jobs, None if none did."""
        ...


@runtime_checkable
class Closing(Protocol):
    """A service that has something to bring to an end before the store is closed."""

    async def close(self, patience: float) -> None:
        """Begin nothing more, and let what is under way end within `patience` seconds."""


class Duty(Protocol):
    """All services of one process, run while it leads."""

    @property
    def names(self) -> tuple[str, ...]: ...

    async def recover(self) -> None:
        """Before the first claim: take back what workers that are known to be dead have left."""

    async def run(self, worker_id: UUID, moved: Callable[[Lines], None]) -> None:
        """Survey and serve until cancelled; `moved` hears of lines that got jobs."""

    async def close(self, patience: float) -> None:
        """After run() has ended: bring to an end what services have under way."""

    def expect(self, delay: timedelta) -> None:
        """A job of ours is scheduled to come due after `delay`."""

    def ended(self, webhook: bool) -> None:
        """Jobs of ours have ended; `webhook`: one of them names a webhook of its own."""
