"""What a system must offer to be measured."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict, runtime_checkable

Store = Literal["postgres", "sqlite"]


class Payload(TypedDict):
    """About 90 bytes of JSON; `sent` is the enqueue time where latency is measured, otherwise 0."""

    id: int
    to: str
    sent: float
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    """Where jobs go; workers have only the kind `noop`."""

    kind: str = "noop"
    queue: str = "bench"
    priority: int = 0


DEFAULT_LANE = Lane()


class Producer(Protocol):
    """An open connection that enqueues durably: each call returns after its commit."""

    async def enqueue(self, payload: Payload) -> None:
        """Enqueue one job on the default lane."""

    async def enqueue_many(self, payloads: Sequence[Payload], lane: Lane = DEFAULT_LANE) -> None:
        """Enqueue all of them in the fastest way the system has."""


class Peer(Protocol):
    """One system with its settings."""

    @property
    def name(self) -> str:
        """The name in reports and on the command line."""

    @property
    def package(self) -> str:
        """The distribution whose version is reported."""

    @property
    def store(self) -> Store:
        """The kind of URL it takes: a Postgres URL or the path of a SQLite file."""

    @property
    def worker(self) -> Sequence[str]:
        """The module whose `async def work(url, counter, queues)` is a worker, then what `sys.argv[5:]` gets."""

    @property
    def drain_jobs(self) -> int:
        """How many jobs take one worker 3 to 8 seconds."""

    @property
    def scenarios(self) -> frozenset[str]:
        """The scenarios it takes part in, by name."""

    async def install(self, url: str) -> None:
        """Create its tables in an empty database."""

    def producer(self, url: str, tasks: int) -> AbstractAsyncContextManager[Producer]:
        """Open a producer that suits this many concurrent tasks."""

    async def unfinished(self, url: str) -> int:
        """How many jobs the database does not yet count as finished."""


@runtime_checkable
class Pausing(Protocol):
    """A system that can hold back one kind of job."""

    async def pause(self, url: str, kind: str) -> None:
        """Hold back the jobs of `kind`, those that wait already included."""


def payload(number: int, sent: float = 0.0) -> Payload:
    """The job that every system runs."""
    return {"id": number, "to": "ada@example.com", "sent": sent, "text": "your order is on its way"}
