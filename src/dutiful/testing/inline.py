"""Enqueue means: run it here and now. For tests of code that enqueues."""

import asyncio
import contextvars
import inspect
from collections.abc import Coroutine, Iterator, Mapping
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
from dutiful.kind import Kind
from dutiful.worker.context import AttemptContext
from dutiful.worker.items import failures
from dutiful.worker.phases import phase_arguments
from dutiful.worker.ports import Ports
from dutiful.worker.slot import Slot
from dutiful.worker.track import Track


@contextmanager
def inline(app: Dutiful, resources: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Within the block, `enqueue` runs the handler at once, and the handle has its result.

    What the handler raises, its caller gets; there are no retries, and nothing is stored. A pipeline runs through all
    of its phases, without timeouts. Payload and result travel as JSON, as they would. When to run it, unique keys and
    dependencies are passed over, and breakers let every call pass. `resources` are what handlers ask for with Inject.
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
        value, context = self._started(job)
        if inspect.iscoroutine(value):
            value = await asyncio.create_task(value, context=context)
        return InlineHandle(job.id, self._result(value))

    async def submit_many(self, jobs: list[NewJob], within: Any = None) -> list[InlineHandle]:
        return [await self.submit(job) for job in jobs]

    def submit_sync(self, job: NewJob, within: Any = None) -> SyncInlineHandle:
        value, context = self._started(job)
        if inspect.iscoroutine(value):
            value = context.run(_run, value)
        return SyncInlineHandle(job.id, self._result(value))

    def submit_many_sync(self, jobs: list[NewJob], within: Any = None) -> list[SyncInlineHandle]:
        return [self.submit_sync(job) for job in jobs]

    def _started(self, job: NewJob) -> tuple[Any, contextvars.Context]:
        """What the handler returned, or a coroutine that will; and the context to run that in."""
        kind, slot, claim = self._app.kind(job.kind), Slot("inline"), _claim(job)
        slot.begin(claim, kind)
        attempt = AttemptContext(
            claim, slot, Ports(_Nowhere(), _Unheard(), None, None, self._app.settings.result_limit)
        )
        resources = {name: self._resource(kind, name) for name in kind.signature.resources.values()}
        context = contextvars.copy_context()
        context.run(CURRENT.set, attempt)
        payload, whole = kind.accept(job.payload, job.tenant)
        attempt.upgrade(whole)
        if kind.phases:
            return self._through(kind, payload, attempt, resources), context
        arguments = msgspec.structs.asdict(kind.signature.decode(payload))
        if kind.signature.context is not None:
            arguments[kind.signature.context] = attempt
        for name, resource in kind.signature.resources.items():
            arguments[name] = resources[resource]
        value = context.run(kind.function, **arguments)
        return (_checked(value, attempt) if inspect.iscoroutine(value) else _check_items(value, attempt)), context

    async def _through(
        self, kind: Kind[Any, Any], payload: str, attempt: AttemptContext, resources: Mapping[str, Any]
    ) -> Any:
        """A pipeline's phases; what the last one returned."""
        value: Any = None
        for phase in kind.phases:
            attempt.enter(phase)
            value = None
            if phase.when is None or phase.when(attempt):
                try:
                    value = phase.function(**phase_arguments(phase, payload, attempt, resources))
                    value = _check_items(await value if inspect.iscoroutine(value) else value, attempt)
                    self._result(value)
                except (Snooze, Cancel):
                    raise
                except Exception:
                    if not phase.optional:
                        raise
                    value = None
            attempt.keep(phase.name, None if value is None else self._text(value))
        return value

    def _resource(self, kind: Kind[Any, Any], name: str) -> Any:
        if name not in self._resources:
            raise UsageError(f"kind {kind.name} asks for {name!r}: inline(app, resources={{{name!r}: …}})")
        return self._resources[name]

    def _result(self, value: Any) -> Any:
        if isinstance(value, (Snooze, Cancel)):
            raise value
        return None if value is None else msgspec.json.decode(self._text(value))

    def _text(self, value: Any) -> str:
        return encode(value, what="result", limit=self._app.settings.result_limit)


async def _checked(handler: Coroutine[Any, Any, Any], attempt: AttemptContext) -> Any:
    return _check_items(await handler, attempt)


def _check_items(value: Any, attempt: AttemptContext) -> Any:
    """`value`, unless every item of the handler has failed."""
    if attempt.tracked is not None:
        failures(attempt.tracked.ledgers)
    return value


class _Nowhere:
    """Stands where a context has its store."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"there is no store for {name} in inline mode: test this handler with testing.app_on(app)")


class _Unheard:
    """Takes progress, and keeps none."""

    def note(self, track: Track) -> None: ...

    async def last_word(self, track: Track) -> None: ...


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
