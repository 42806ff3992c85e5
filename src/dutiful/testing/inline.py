"""Enqueue means: run it here and now. For tests of code that enqueues."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest.mock import patch
from uuid import UUID

import msgspec

from dutiful.app import Dutiful
from dutiful.context import CURRENT
from dutiful.core import ids
from dutiful.core.duration import Duration
from dutiful.core.errors import UsageError
from dutiful.core.job import Claim, NewJob
from dutiful.core.outcome import Cancel, Snooze
from dutiful.core.payload import encode
from dutiful.kind import Kind, Mode
from dutiful.worker.context import AttemptContext
from dutiful.worker.slot import Slot


@contextmanager
def inline(app: Dutiful, resources: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Within the block, `enqueue` runs the handler at once, and the handle has its result.

    What the handler raises, its caller gets; there are no retries, and nothing is stored. Payload and result travel as
    JSON, as they would. When to run it, unique keys and dependencies are passed over. `resources` are what handlers
    ask for with Inject.
    """
    runner = _Runner(app, resources or {})
    with patch.multiple(
        app,
        submit=runner.submit,
        submit_many=runner.submit_many,
        submit_sync=runner.submit_sync,
        submit_many_sync=runner.submit_many_sync,
    ):
        yield


class _Finished:
    """A job that has run."""

    created = True

    def __init__(self, job_id: UUID, result: Any) -> None:
        self.id = job_id
        self.public_id = ids.public(job_id)
        self._result = result


class InlineHandle(_Finished):
    async def result(self, timeout: Duration | None = None) -> Any:
        return self._result

    async def cancel(self, reason: str = "cancelled") -> bool:
        return False


class SyncInlineHandle(_Finished):
    def result(self, timeout: Duration | None = None) -> Any:
        return self._result

    def cancel(self, reason: str = "cancelled") -> bool:
        return False


class _Runner:
    def __init__(self, app: Dutiful, resources: Mapping[str, Any]) -> None:
        self._app = app
        self._resources = resources

    async def submit(self, job: NewJob, within: Any = None) -> InlineHandle:
        kind, call, context = self._prepare(job)
        value = context.run(call)
        if kind.mode is Mode.LOOP:
            value = await asyncio.create_task(value, context=context)
        return InlineHandle(job.id, self._result(value))

    async def submit_many(self, jobs: list[NewJob], within: Any = None) -> list[InlineHandle]:
        return [await self.submit(job) for job in jobs]

    def submit_sync(self, job: NewJob, within: Any = None) -> SyncInlineHandle:
        kind, call, context = self._prepare(job)
        value = context.run(call)
        if kind.mode is Mode.LOOP:
            value = context.run(_run, value)
        return SyncInlineHandle(job.id, self._result(value))

    def submit_many_sync(self, jobs: list[NewJob], within: Any = None) -> list[SyncInlineHandle]:
        return [self.submit_sync(job) for job in jobs]

    def _prepare(self, job: NewJob) -> tuple[Kind[Any, Any], Callable[[], Any], contextvars.Context]:
        kind, slot, claim = self._app.kind(job.kind), Slot("inline"), _claim(job)
        slot.begin(claim, kind)
        attempt = AttemptContext(claim, slot, _Nowhere(), self._app.settings.result_limit)
        arguments = msgspec.structs.asdict(kind.signature.decode(job.payload))
        if kind.signature.context is not None:
            arguments[kind.signature.context] = attempt
        for name, resource in kind.signature.resources.items():
            if resource not in self._resources:
                raise UsageError(f"kind {kind.name} asks for {resource!r}: inline(app, resources={{{resource!r}: …}})")
            arguments[name] = self._resources[resource]
        context = contextvars.copy_context()
        context.run(CURRENT.set, attempt)
        return kind, lambda: kind.function(**arguments), context

    def _result(self, value: Any) -> Any:
        if isinstance(value, (Snooze, Cancel)):
            raise value
        return (
            None
            if value is None
            else msgspec.json.decode(encode(value, what="result", limit=self._app.settings.result_limit))
        )


class _Nowhere:
    """Stands where a context has its store."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"there is no store for {name} in inline mode: test this handler with testing.app_on(app)")


def _claim(job: NewJob) -> Claim:
    return Claim(
        job_id=job.id,
        claim_id=0,
        attempt=1,
        crashes=0,
        seq=0,
        kind=job.kind,
        queue=job.queue,
        payload=job.payload,
        priority=job.priority,
        max_attempts=job.max_attempts,
        tenant=job.tenant,
        correlation_id=job.correlation_id,
        parent_id=job.parent_id,
        subject=job.subject,
        options=job.options,
    )


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine for a blocking caller, who may itself stand on a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(contextvars.copy_context().run, asyncio.run, work).result()
