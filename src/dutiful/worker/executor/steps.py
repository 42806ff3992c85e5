"""The steps of attempts: a retry gets the results that are stored."""

import asyncio
import inspect
import time
import typing
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from dutiful.core.duration import Duration, duration
from dutiful.core.errors import EventTimeout, UsageError
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
from dutiful.payload.key_ring import JobSeal, KeyRing
from dutiful.payload.sealing import open_event, open_part, seal_step
from dutiful.payload.signature import convert
from dutiful.store.steps import StepMark, StepWait
from dutiful.worker.executor.outcomes import encode_result
from dutiful.worker.executor.step_writer import StepWriter

# Finding a hint costs as much as all the rest of a step. Weak, because a handler may define a function in each attempt.
_HINTS: MutableMapping[Callable[..., Any], Any] = WeakKeyDictionary()


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
    hint = _return_hint(function)
    return value if value is None or hint is Any else convert(value, hint, f"the result of step {name!r}")


def _return_hint(function: Callable[..., Any]) -> Any:
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)  # a bound method is another object each time
    try:
        return _HINTS[function]
    except (KeyError, TypeError):  # not known, or not of a kind that can be remembered
        pass
    try:
        hint = typing.get_type_hints(function).get("return", Any)
    except Exception:  # no function, or a name that is not known here
        hint = Any
    with suppress(TypeError):
        _HINTS[function] = hint
    return hint
