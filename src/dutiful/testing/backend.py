"""A queue backend for tests: jobs are delivered within the process, without Redis, and run when the test says so."""

from typing import Any
from uuid import UUID

import msgspec

from dutiful.delivery.backend import DEFAULT_QUEUE, Message, delivery_id, stored_result
from dutiful.store import Store


class InProcessBackend:
    """Keeps deliveries in their order; `kit.run_delivered()` runs them one after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.delivered: list[Message] = []  # all, in order
        self._waiting: dict[str, Message] = {}

    async def enqueue(self, job_type: str, payload: dict[str, Any], *, queue_name: str = DEFAULT_QUEUE) -> str | None:
        message, name = Message(job_type, payload, queue_name), delivery_id(payload)
        self.delivered.append(message)
        self._waiting.setdefault(name, message)
        return name

    async def get_job_metadata(self, backend_job_id: str) -> dict[str, Any] | None:
        found = self._waiting.get(backend_job_id)
        return None if found is None else {"status": "queued", **msgspec.structs.asdict(found)}

    async def get_job_result(self, backend_job_id: str) -> object | None:
        return await stored_result(self._store, backend_job_id)

    def take(self) -> list[UUID]:
        """The jobs whose deliveries wait, in order; they wait no longer."""
        taken, self._waiting = self._waiting, {}
        return [UUID(message.payload["job_id"]) for message in taken.values()]

    def lose(self) -> None:
        """Forgets everything, as a broker that lost its data."""
        self._waiting.clear()
