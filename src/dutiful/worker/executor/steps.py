"""The steps of attempts: their results are stored, those of all handlers of a worker together."""

import asyncio
import contextvars
import inspect
import logging
import time
import typing
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from dutiful.concurrency.daemon_pool import DaemonPool
from dutiful.core import ids
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import ClaimLost, DataRefused, DutifulError, EventTimeout, UsageError
from dutiful.core.job import Claim
from dutiful.core.steps import (
    STEP_LIMIT,
    StepKind,
    StepRecord,
    StepState,
    Waiting,
    check_event,
    check_same,
    check_step,
    fingerprint,
    name_of,
)
from dutiful.observe.logs import job_fields
from dutiful.observe.outage import level_of
from dutiful.payload.key_ring import JobSeal, KeyRing
from dutiful.payload.sealing import open_event, open_part, seal_step
from dutiful.payload.signature import convert
from dutiful.store.steps import StepMark, StepStore, StepWait
from dutiful.worker.executor.outcomes import encode_result

log = logging.getLogger("dutiful.worker")
BATCH = 1_000
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0
T = TypeVar("T")
R = TypeVar("R")
AGAIN = object()  # the answer for an item that is tried again


class GroupCall(Generic[T, R]):
    """Calls the store once for all items that came in while the last call was under way."""

    def __init__(self, call: Callable[[Sequence[T]], Awaitable[Sequence[Any]]]) -> None:
        """`call` answers for each item: with its result, an exception, or AGAIN."""
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._running: asyncio.Task[None] | None = None
        self._context = contextvars.copy_context()  # not that of the handler that comes first
        self._closed = False

    async def __call__(self, item: T) -> R:
        if self._closed:
            raise ClaimLost("this worker has ended")
        answer: asyncio.Future[R] = self._loop.create_future()
        self._waiting.append((item, answer))
        if self._running is None:
            self._running = self._loop.create_task(self._run(), name="dutiful steps", context=self._context)
        return await answer

    def close(self) -> None:
        self._closed = True
        if self._running is not None:
            self._running.cancel()
        for _, answer in self._waiting:
            if not answer.done():
                answer.set_exception(ClaimLost("this worker has ended"))

    async def _run(self) -> None:
        pause = FIRST_RETRY
        try:
            while batch := self._take():
                try:
                    again = await self._answer(batch)
                except DutifulError as error:
                    log.log(level_of(error), "steps wait for the store: %s", error)
                    again = batch
                if again:
                    self._waiting[:0] = again
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_RETRY)
                else:
                    pause = FIRST_RETRY
        finally:
            self._running = None

    def _take(self) -> list[tuple[T, "asyncio.Future[R]"]]:
        wanted = [one for one in self._waiting if not one[1].done()]  # else its caller has given up
        self._waiting = wanted[BATCH:]
        return wanted[:BATCH]

    async def _answer(self, batch: list[tuple[T, "asyncio.Future[R]"]]) -> list[tuple[T, "asyncio.Future[R]"]]:
        """Returns those to be tried again."""
        try:
            answers = await self._call([item for item, _ in batch])
        except Exception as error:
            if isinstance(error, DutifulError) and not isinstance(error, DataRefused):
                raise  # not caused by an item
            if len(batch) > 1:
                middle = len(batch) // 2
                return [*await self._answer(batch[:middle]), *await self._answer(batch[middle:])]
            answers = [error]
        again = []
        for (item, future), answer in zip(batch, answers, strict=True):
            if answer is AGAIN:
                again.append((item, future))
            elif not future.done():
                future.set_exception(answer) if isinstance(answer, BaseException) else future.set_result(answer)
        return again


class StepWriter:
    """Reads and writes the steps of all attempts of a worker."""

    def __init__(self, store: StepStore, threads: int) -> None:
        self._store = store
        self.load: GroupCall[Claim, list[StepRecord]] = GroupCall(self._load)
        self.put: GroupCall[StepMark, None] = GroupCall(self._put)
        self._threads = DaemonPool(threads, "dutiful step")

    async def wait(self, wait: StepWait, claim: Claim) -> tuple[StepRecord, datetime]:
        """Begins to wait, or goes on; tries again until the store answers."""
        pause = FIRST_RETRY
        while True:
            try:
                found = await self._store.wait(wait)
            except DataRefused:
                raise
            except DutifulError as error:
                job = ids.public(claim.job_id)
                log.log(level_of(error), "job %s cannot begin to wait: %s", job, error, extra=job_fields(claim))
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_RETRY)
                continue
            if found is None:
                raise _lost(wait)
            return found

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        """Runs a plain function beside the event loop; one whose attempt ends runs on, and its result is lost."""
        thread = self._threads.submit(partial(contextvars.copy_context().run, call))
        try:
            return await asyncio.wrap_future(thread)
        except asyncio.CancelledError:
            self._threads.leave(thread)
            raise

    def close(self) -> None:
        self.load.close()
        self.put.close()
        self._threads.close()

    async def _load(self, claims: Sequence[Claim]) -> Sequence[Any]:
        found = await self._store.load([claim.job_id for claim in claims])
        return [found.get(claim.job_id, []) for claim in claims]

    async def _put(self, marks: Sequence[StepMark]) -> Sequence[Any]:
        unstored = await self._store.put(marks)
        if not unstored.lost and not unstored.busy:
            return [None] * len(marks)
        return [
            _lost(mark) if mark.claim_id in unstored.lost else AGAIN if mark.claim_id in unstored.busy else None
            for mark in marks
        ]


class AttemptSteps:
    """The steps of one attempt."""

    def __init__(
        self,
        writer: StepWriter,
        claim: Claim,
        result_limit: int,
        seal: JobSeal | None = None,
        key_ring: KeyRing | None = None,
    ) -> None:
        self._seal = seal
        self._key_ring = key_ring
        self._writer = writer
        self._claim = claim
        self._result_limit = result_limit
        self._used: set[str] = set()
        self._loading: asyncio.Task[None] | None = None
        self._known: dict[str, StepRecord] = {}
        self._waiting: Waiting | None = None
        self._beginning = 0  # waits that the store has not answered
        self._begun = asyncio.Condition()
        self._steps: list[StepRecord] = []  # those that wait

    async def call(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, code = self._begin(name), name_of(function)
        mark = fingerprint(code, args, kwargs)
        known = await self._find(name)
        if known is not None:
            return _typed(function, name, check_same(known, StepKind.CALL, code, mark).result)
        position, began = self._position(), time.monotonic()
        if _is_async(function):
            value = await function(*args, **kwargs)
        else:
            value = await self._writer.in_thread(partial(function, *args, **kwargs))
            value = await value if inspect.isawaitable(value) else value
        result = await self._keep(name, position, code, mark, began, value)
        return _typed(function, name, result)

    def begin_call(self, name: str, function: Callable[..., Any]) -> str:
        """Checks the name of a step whose function runs in the handler's own thread."""
        if _is_async(function):
            raise UsageError(
                f"step {name!r}: a blocking handler cannot await {name_of(function)}; pass a plain function"
            )
        return self._begin(name)

    async def stored(self, name: str, function: Callable[..., Any], mark: str) -> tuple[bool, Any]:
        """Whether the step is done, and its result."""
        known = await self._find(name)
        if known is None:
            return False, None
        return True, _typed(function, name, check_same(known, StepKind.CALL, name_of(function), mark).result)

    async def keep(self, name: str, function: Callable[..., Any], mark: str, began: float, value: Any) -> Any:
        """Stores the result of such a step."""
        return _typed(function, name, await self._keep(name, self._position(), name_of(function), mark, began, value))

    async def sleep(self, length: Duration, name: str) -> None:
        # Without the length, because one that is computed from a time is another in each attempt.
        await self._wait(name, StepKind.SLEEP, f"sleep({length!r})", fingerprint("sleep"), length)

    async def wait_for_event(self, event: str, key: str, timeout: Duration | None, name: str | None) -> Any:
        event, key = check_event(event, key)
        code = f"wait_for_event({event!r}, {key!r})"
        step = await self._wait(name or event, StepKind.EVENT, code, fingerprint(code), timeout, event, key)
        if step.state is StepState.TIMED_OUT:
            raise EventTimeout(f"no event {event!r} with the key {key!r} came within {timeout}")
        return open_event(self._key_ring, event, key, self._claim.tenant, step.result)

    def check_ended(self) -> None:
        """Ends an attempt whose handler has returned although its job waits."""
        if self._waiting is not None:
            raise self._waiting

    async def _wait(
        self,
        name: str,
        kind: StepKind,
        code: str,
        mark: str,
        length: Duration | None,
        event: str | None = None,
        key: str | None = None,
    ) -> StepRecord:
        name = self._begin(name)
        known = await self._find(name)
        if known is not None and check_same(known, kind, code, mark).state is not StepState.WAITING:
            return known
        timeout = None  # the time that is stored holds
        if known is None and length is not None:
            timeout = duration(length, "sleep" if kind is StepKind.SLEEP else "timeout")
        asked = StepWait(
            job_id=self._claim.job_id,
            claim_id=self._claim.claim_id,
            name=name,
            position=self._position(),
            kind=kind,
            code=code,
            fingerprint=mark,
            timeout=timeout,
            event=event,
            key=key,
        )
        self._beginning += 1
        try:
            step, now = await self._writer.wait(asked, self._claim)
        finally:
            self._beginning -= 1
            async with self._begun:
                self._begun.notify_all()
        self._known[name] = step
        if step.state is not StepState.WAITING:
            return step
        self._steps.append(step)
        async with self._begun:  # the attempt ends with all waits that began at the same time
            await self._begun.wait_for(lambda: not self._beginning)
        self._waiting = Waiting(self._steps, now)
        raise self._waiting

    def _begin(self, name: str) -> str:
        name = check_step(name)
        self.check_ended()
        if name in self._used:
            raise UsageError(f"step {name!r} is used twice in one attempt: give each step a name of its own")
        if len(self._used) >= STEP_LIMIT:
            raise UsageError(f"a job has {STEP_LIMIT:,} steps at most: split it into several jobs")
        self._used.add(name)
        return name

    async def _find(self, name: str) -> StepRecord | None:
        if self._loading is None:  # once, also if several steps of a handler begin at the same time
            self._loading = asyncio.create_task(self._load())
        await asyncio.shield(self._loading)
        return self._known.get(name)

    async def _load(self) -> None:
        steps, seal = await self._writer.load(self._claim), self._seal
        self._known = {step.name: step if seal is None else open_part(seal, step) for step in steps}

    def _position(self) -> int:
        return len(self._used) - 1

    async def _keep(self, name: str, position: int, code: str, mark: str, began: float, value: Any) -> Any:
        text = encode_result(value, self._result_limit, f"result of step {name}")
        stored = mark, text
        if self._seal is not None:
            stored = seal_step(self._seal, name, mark, text)
        await self._writer.put(
            StepMark(
                job_id=self._claim.job_id,
                claim_id=self._claim.claim_id,
                name=name,
                position=position,
                code=code,
                fingerprint=stored[0],
                took=timedelta(seconds=time.monotonic() - began),
                result=stored[1],
            )
        )
        return None if text is None else msgspec.json.decode(text)


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _typed(function: Callable[..., Any], name: str, value: Any) -> Any:
    """The result with the type that the function declares, also when it has just been called."""
    while isinstance(function, partial):
        function = function.func
    try:
        hint = typing.get_type_hints(function).get("return", Any)
    except Exception:  # no function, or a name that is not known here
        return value
    return value if value is None else convert(value, hint, f"the result of step {name!r}")


def _lost(of: StepMark | StepWait) -> ClaimLost:
    return ClaimLost(f"the claim of job {ids.public(of.job_id)} is lost: its step {of.name} is not stored")
