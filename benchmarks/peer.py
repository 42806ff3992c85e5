"""What a system must offer to be measured."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict, runtime_checkable

from benchmarks.run_counter import RunCounter

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

# The scenarios that any system on Postgres can take part in.
COMMON = frozenset(
    {"drain1", "drain2", "enqueue-single", "enqueue-few", "enqueue-concurrent", "enqueue-bulk", "latency"}
)


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
class Filling(Protocol):
    """A producer in a process of its own, which has to measure itself: talking to it takes longer than an enqueue."""

    @property
    def pids(self) -> list[int]:
        """Its processes."""

    async def fill(self, tasks: int, batch: int, seconds: float) -> tuple[int, float]:
        """Enqueue from so many tasks for so long; returns how many jobs, and the seconds that it really took."""


@runtime_checkable
class Embedding(Protocol):
    """A system whose worker can run in the process that enqueues."""

    def embedded(self, url: str, counter: RunCounter) -> AbstractAsyncContextManager[Producer]:
        """Run a worker in this process, and open a producer beside it."""


@runtime_checkable
class Versioned(Protocol):
    """A system that is no Python distribution, and so has to say its version itself."""

    @property
    def version(self) -> str:
        """As its own registry has it."""


@runtime_checkable
class Pausing(Protocol):
    """A system that can hold back one kind of job."""

    async def pause(self, url: str, kind: str) -> None:
        """Hold back the jobs of `kind`, those that wait already included."""


def payload(number: int, sent: float = 0.0) -> Payload:
    """The job that every system runs."""
    return {"id": number, "to": "ada@example.com", "sent": sent, "text": "your order is on its way"}
