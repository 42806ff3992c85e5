"""The contract of a queue backend, which delivers jobs by their ids to workers; and the one that is the store itself.

A backend delivers and nothing else: the rows of the store say what there is to do, and a claim decides which worker
does it. So a backend may lose a delivery, repeat it or be late.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from dutiful.core.errors import MalformedId
from dutiful.core.ids import parse_any
from dutiful.store import Store

DEFAULT_QUEUE = "default"


class QueueBackend(Protocol):
    """What Dutiful asks of a broker. `Dutiful(backend=…)` takes one of your own."""

    async def enqueue(self, job_type: str, payload: dict[str, Any], *, queue_name: str = DEFAULT_QUEUE) -> str | None:
        """Delivers a job that is stored; `payload` has its `job_id`, its `priority`, and the `number` of the delivery.

        Returns the broker's id of it, or None if the broker does not give one at once.
        """

    async def get_job_metadata(self, backend_job_id: str) -> dict[str, Any] | None:
        """What the broker knows of a delivery, for diagnosis only; None if it does not know it."""

    async def get_job_result(self, backend_job_id: str) -> object | None:
        """The result of the job, None if there is none yet."""


class Message(msgspec.Struct, frozen=True):
    """One delivery, as `enqueue` takes it."""

    job_type: str
    payload: dict[str, Any]
    queue_name: str

    @classmethod
    def of(cls, kind: str, queue: str, job_id: UUID, priority: int, number: int) -> "Message":
        return cls(kind, {"job_id": str(job_id), "priority": priority, "number": number}, queue)


@runtime_checkable
class BatchBackend(Protocol):
    """A backend that can do many at once."""

    async def enqueue_many(self, messages: Sequence[Message]) -> list[str | None]:
        """The same as `enqueue` for each."""

    async def missing(self, delivered: Sequence[tuple[str, str]]) -> set[str]:
        """Those of these deliveries, by queue and backend_job_id, that the broker does not have any more."""


@runtime_checkable
class ClosableBackend(Protocol):
    async def close(self) -> None: ...


@runtime_checkable
class Pingable(Protocol):
    async def ping(self) -> str:
        """The broker's version; BackendAway if it does not answer."""


@runtime_checkable
class NamesQueues(Protocol):
    def queue_key(self, queue: str) -> str:
        """What the broker calls a queue."""


@runtime_checkable
class NamesDeliveries(Protocol):
    def delivery_name(self, job_id: UUID, number: int) -> str:
        """What the broker calls a delivery, whatever the store says: any client may write there."""


def place_of(backend: QueueBackend, queue: str) -> str:
    """Where a delivery of this queue is, for people."""
    return f"the Arq queue {backend.queue_key(queue)}" if isinstance(backend, NamesQueues) else "the broker"


class StoreBackend:
    """No broker: workers find jobs in the store, so nothing is delivered, and no ids are given."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def enqueue(self, job_type: str, payload: dict[str, Any], *, queue_name: str = DEFAULT_QUEUE) -> str | None:
        return None

    async def get_job_metadata(self, backend_job_id: str) -> dict[str, Any] | None:
        """By the id of the job itself, because there is no other."""
        job_id = job_of(backend_job_id)
        job = None if job_id is None else await self._store.queries.job(job_id)
        return None if job is None else {"state": job.state.value, "queue": job.queue, "attempt": job.attempt}

    async def get_job_result(self, backend_job_id: str) -> object | None:
        return await stored_result(self._store, backend_job_id)


async def stored_result(store: Store, backend_job_id: str) -> object | None:
    """The result in the row of the job, because no broker keeps one."""
    job_id = job_of(backend_job_id)
    job = None if job_id is None else await store.queries.job(job_id)
    result: object | None = None if job is None else job.result
    return result


def delivery_id(payload: Mapping[str, Any]) -> str:
    """The same for a repetition of a delivery, so that a broker which drops duplicates drops it."""
    return f"{payload['job_id']}:{payload['number']}"


def job_of(backend_job_id: str) -> UUID | None:
    """The job of a `delivery_id`, or of an id of a job; None of any other text."""
    try:
        return parse_any(backend_job_id.partition(":")[0])
    except MalformedId:
        return None
