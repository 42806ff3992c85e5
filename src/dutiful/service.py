"""The contract of a service: a duty that one elected process does, and that is correct when two do it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from dutiful.delivery import Lines
from dutiful.store import Survey


class Service(Protocol):
    """One duty."""

    @property
    def name(self) -> str: ...

    async def tick(self, survey: Survey) -> Lines | None:
        """Do what is due, in bounded steps; returns the lines that got jobs, None if none did."""
        ...


class Duty(Protocol):
    """All services of one process, run while it leads."""

    async def run(self, worker_id: UUID, moved: Callable[[Lines], None]) -> None:
        """Survey and serve for ever; `moved` hears of lines that got jobs."""

    def expect(self, delay: timedelta) -> None:
        """A job of ours is scheduled to come due after `delay`."""
