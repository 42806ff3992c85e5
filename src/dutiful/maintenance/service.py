"""The contract of a maintenance service."""

from typing import Protocol, runtime_checkable

from dutiful.delivery.base import QueueLevels
from dutiful.store.leadership import Survey


class Service(Protocol):
    """One duty of the leader. It must be correct when two processes run it at once, as around a change of leader."""

    @property
    def name(self) -> str: ...

    async def tick(self, survey: Survey) -> QueueLevels | None:
        """Does what is due, in bounded steps; returns the queue levels that got jobs, None if none did."""


@runtime_checkable
class Closable(Protocol):
    """A service that has work in flight, which must end before the store is closed."""

    async def close(self, timeout: float) -> None:
        """Starts nothing more, and waits up to `timeout` seconds for what is in flight."""
