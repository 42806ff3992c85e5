"""Inline mode, for tests of code that enqueues: a job runs at once, within `enqueue`."""

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, NoReturn, cast
from unittest.mock import patch
from uuid import UUID

import msgspec

from dutiful.app import Dutiful
from dutiful.context import CURRENT, Context
from dutiful.core import ids
from dutiful.core.duration import Duration
from dutiful.core.errors import UsageError
from dutiful.core.job import Claim, NewJob
from dutiful.core.json import encode
from dutiful.core.outcome import Cancel, Snooze
from dutiful.kind import Kind, Mode
from dutiful.payload.batch_signature import BatchSignature
from dutiful.worker.executor.around import await_around, call_around
from dutiful.worker.executor.batch import BatchAttempt, ClaimedJob, batch_arguments, returned_outcomes
from dutiful.worker.executor.context import AttemptContext, AttemptDeps
from dutiful.worker.executor.items import failed_items
from dutiful.worker.executor.pipeline_runner import phase_arguments
from dutiful.worker.executor.progress import ProgressTracker
from dutiful.worker.slots import Slot


@contextmanager
def inline(app: Dutiful, resources: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Within the block, `enqueue` runs the handler at once, and the handle has its result.

    Errors of the handler are raised by `enqueue`; there are no retries, and nothing is stored. A pipeline runs through
    all of its phases, without timeouts. Payload and result travel as JSON, as usual. Delays, unique keys and
    dependencies are ignored, and breakers let every call pass. `resources` are injected with Inject.
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
        if self._app.kind(job.kind).batch is not None:
            return (await self.submit_many([job]))[0]
        value, context = self._start(job)
        if inspect.iscoroutine(value):
            value = await asyncio.create_task(value, context=context)
        return InlineHandle(job.id, self._result(value))

    async def submit_many(self, jobs: list[NewJob], within: Any = None) -> list[InlineHandle]:
        handles: list[InlineHandle] = []
        for together in self._batches(jobs):
            if self._app.kind(together[0].kind).batch is None:
                handles += [await self.submit(job) for job in together]
                continue
            value, context = self._start_batch(together)
            if inspect.iscoroutine(value):
                value = await asyncio.create_task(value, context=context)
            handles += [InlineHandle(job.id, result) for job, result in self._results(together, value)]
        return handles

    def submit_sync(self, job: NewJob, within: Any = None) -> SyncInlineHandle:
        if self._app.kind(job.kind).batch is not None:
            return self.submit_many_sync([job])[0]
        value, context = self._start(job)
        if inspect.iscoroutine(value):
            value = context.run(_run, value)
        return SyncInlineHandle(job.id, self._result(value))

    def submit_many_sync(self, jobs: list[NewJob], within: Any = None) -> list[SyncInlineHandle]:
        handles: list[SyncInlineHandle] = []
        for together in self._batches(jobs):
            if self._app.kind(together[0].kind).batch is None:
                handles += [self.submit_sync(job) for job in together]
                continue
            value, context = self._start_batch(together)
            if inspect.iscoroutine(value):
                value = context.run(_run, value)
            handles += [SyncInlineHandle(job.id, result) for job, result in self._results(together, value)]
        return handles

    def _batches(self, jobs: list[NewJob]) -> Iterator[list[NewJob]]:
        """The jobs in their order, those together that a worker could handle in one batch."""
        for (name, _), same in groupby(jobs, lambda job: (job.kind, self._batch_tenant(job))):
            batch, left = self._app.kind(name).batch, list(same)
            size = len(left) if batch is None else batch.size
            yield from (left[at : at + size] for at in range(0, len(left), size))

    def _batch_tenant(self, job: NewJob) -> str | None:
        batch = self._app.kind(job.kind).batch
        return None if batch is None or batch.across_tenants else job.tenant

    def _start_batch(self, jobs: list[NewJob]) -> tuple[Any, contextvars.Context]:
        """Returns what the handler returned for the batch, or a coroutine of it, and the context to run that in."""
        kind, slot = self._app.kind(jobs[0].kind), Slot("inline")
        signature, claims = kind.signature, [_claim(job) for job in jobs]
        assert isinstance(signature, BatchSignature)
        slot.begin(claims[0], kind)
        attempt = self._attempt(claims[0], slot)
        made = [ClaimedJob(claim, lambda _: attempt.cancelled) for claim in claims]
        for one, job in zip(made, jobs, strict=True):
            payload, whole = kind.accept(job.payload, job.tenant, job.subject)
            one.set_payload(whole)
            one.value = signature.decode(payload)
        batch = BatchAttempt(attempt, made, self._batch_tenant(jobs[0]))
        context = contextvars.copy_context()
        context.run(CURRENT.set, cast(Context, batch))
        resources = {name: self._resource(kind, name) for name in signature.resources.values()}
        arguments = batch_arguments(signature, batch, resources)
        return context.run(_called, kind, kind.mode, partial(kind.function, **arguments), cast(Context, batch)), context

    def _results(self, jobs: list[NewJob], value: Any) -> Iterator[tuple[NewJob, Any]]:
        for job, one in zip(jobs, returned_outcomes(jobs[0].kind, value, len(jobs)), strict=True):
            if isinstance(one, BaseException):
                raise one
            yield job, self._result(one)

    def _attempt(self, claim: Claim, slot: Slot) -> AttemptContext:
        deps = AttemptDeps(_NoStore(), _NoProgress(), None, None, self._app.settings.result_limit)
        return AttemptContext(claim, slot, deps)

    def _start(self, job: NewJob) -> tuple[Any, contextvars.Context]:
        """Returns the handler's result, or a coroutine of it, and the context to run that in."""
        kind, slot, claim = self._app.kind(job.kind), Slot("inline"), _claim(job)
        slot.begin(claim, kind)
        attempt = self._attempt(claim, slot)
        resources = {name: self._resource(kind, name) for name in kind.signature.resources.values()}
        context = contextvars.copy_context()
        context.run(CURRENT.set, attempt)
        payload, whole = kind.accept(job.payload, job.tenant, job.subject)
        attempt.set_payload(whole)
        if kind.phases:
            return self._run_phases(kind, payload, attempt, resources), context
        arguments = msgspec.structs.asdict(kind.signature.decode(payload))
        if kind.signature.context is not None:
            arguments[kind.signature.context] = attempt
        for name, resource in kind.signature.resources.items():
            arguments[name] = resources[resource]
        value = context.run(_called, kind, kind.mode, partial(kind.function, **arguments), attempt)
        return (_checked(value, attempt) if inspect.iscoroutine(value) else _check_items(value, attempt)), context

    async def _run_phases(
        self, kind: Kind[Any, Any], payload: str, attempt: AttemptContext, resources: Mapping[str, Any]
    ) -> Any:
        """Runs a pipeline's phases; returns the result of the last one."""
        value: Any = None
        for phase in kind.phases:
            attempt.enter_phase(phase)
            value = None
            if phase.when is None or phase.when(attempt):
                try:
                    arguments = phase_arguments(phase, payload, attempt, resources)
                    value = _called(kind, phase.mode, partial(phase.function, **arguments), attempt)
                    value = _check_items(await value if inspect.iscoroutine(value) else value, attempt)
                    self._result(value)
                except (Snooze, Cancel):
                    raise
                except Exception:
                    if not phase.optional:
                        raise
                    value = None
            attempt.keep_result(phase.name, None if value is None else self._text(value))
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


def _called(kind: Kind[Any, Any], mode: Mode, call: Callable[[], Any], attempt: Context) -> Any:
    """Calls the handler inside the app's hooks, but not Django's: the connections of this thread are the test's."""
    around = await_around if mode is Mode.LOOP else call_around
    return around(kind.attempt_hooks, attempt, call)


async def _checked(handler: Coroutine[Any, Any, Any], attempt: AttemptContext) -> Any:
    return _check_items(await handler, attempt)


def _check_items(value: Any, attempt: AttemptContext) -> Any:
    """Returns `value`, unless every item of the handler has failed."""
    if attempt.tracker is not None:
        failed_items(attempt.tracker.item_counts)
    return value


class _NoStore:
    """Takes the place of a context's store."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"there is no store for {name} in inline mode: test this handler with testing.app_on(app)")


class _NoProgress:
    """Discards progress."""

    def changed(self, progress: ProgressTracker) -> None: ...

    async def flush(self, progress: ProgressTracker) -> None: ...


def _claim(job: NewJob) -> Claim:
    asked = {name: getattr(job, name) for name in Claim.__struct_fields__ if name in NewJob.__struct_fields__}
    return Claim(job_id=job.id, claim_id=0, attempt=1, crashes=0, seq=0, **asked)


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine for a blocking caller, even on the thread of a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(contextvars.copy_context().run, asyncio.run, work).result()
