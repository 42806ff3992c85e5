"""Waits for results: one query serves all callers of this process."""

import asyncio
from contextvars import Context
from datetime import timedelta
from typing import Any
from uuid import UUID

from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.errors import JobCancelled, JobFailed, ResultTimeout, StoreUnavailable
from dutiful.core.job import JobRecord, job_not_found
from dutiful.core.states import State
from dutiful.store import Store

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5  # seconds between two queries


class ResultWaiter:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[UUID, list[asyncio.Future[JobRecord]]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._added = asyncio.Event()

    async def wait(self, job_id: UUID, limit: timedelta | None) -> JobRecord:
        """The job once it is final; ResultTimeout after `limit`."""
        if await self._store.queries.job(job_id) is None:
            raise job_not_found(job_id)
        future: asyncio.Future[JobRecord] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job_id, []).append(future)
        self._added.set()
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll(), name="dutiful results", context=Context())
        try:
            return await asyncio.wait_for(future, None if limit is None else limit.total_seconds())
        except TimeoutError:
            assert limit is not None
            raise ResultTimeout(f"job {ids.public(job_id)} is not final after {brief(limit)}; it continues") from None
        finally:
            rest = [f for f in self._waiters.pop(job_id, []) if f is not future]
            if rest:
                self._waiters[job_id] = rest

    async def _poll(self) -> None:
        pause = FIRST_PAUSE
        try:
            while self._waiters:
                self._added.clear()
                for record in await self._store.queries.outcomes(list(self._waiters)):
                    pause = FIRST_PAUSE
                    for future in self._waiters.pop(record.id, []):
                        if not future.done():
                            future.set_result(record)
                try:
                    async with asyncio.timeout(pause):  # wait_for may forget a cancellation
                        await self._added.wait()
                    pause = FIRST_PAUSE
                except TimeoutError:
                    pause = min(pause * 1.5, LONGEST_PAUSE)
        except Exception as error:
            for future in [f for futures in self._waiters.values() for f in futures]:
                if not future.done():
                    future.set_exception(error)
        finally:
            self._polling = None

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        for job_id, futures in self._waiters.items():
            for future in futures:
                if not future.done():
                    future.set_exception(
                        StoreUnavailable(f"the app was closed before job {ids.public(job_id)} was final; it continues")
                    )


def result_of(record: JobRecord) -> Any:
    """The result of a final job; JobFailed or JobCancelled if it has none."""
    match record.state:
        case State.COMPLETED | State.COMPLETED_WITH_ERRORS:
            return record.result
        case State.CANCELLED:
            raise JobCancelled(f"job {ids.public(record.id)} was cancelled: {_message(record)}")
        case _:
            raise JobFailed(f"job {ids.public(record.id)} failed: {_message(record)}", record.state, record.error)


def _message(record: JobRecord) -> str:
    error = record.error or {}
    return f"{error.get('type', 'unknown')}: {error.get('message', '')}"
