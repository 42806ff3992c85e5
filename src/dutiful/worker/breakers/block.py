"""A breaker in a handler: `async with ctx.breaker(…)`, `with ctx.breaker(…)` in a thread, or declared on the kind."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError as LoopCancelled
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Self

from dutiful.concurrency.loop_call import LoopCall, on_event_loop
from dutiful.core.breaker.state import CallResult, Entry
from dutiful.core.errors import BreakerOpen, UsageError
from dutiful.core.job import ClaimToken
from dutiful.worker.breakers.client import BreakerClient
from dutiful.worker.slots import Slot

log = logging.getLogger("dutiful.worker")
ResultOf = Callable[[BaseException | None], CallResult]


@dataclass(slots=True, eq=False)
class BreakerCall:
    """One call through a breaker, which decides which of nested calls reports its result."""

    attempt: "AttemptBreakers"
    name: str
    outer: "BreakerCall | None"  # the call around its block, of any breaker
    entry: Entry | None = None
    inside: bool = False
    abandoned: bool = False
    has_turn: bool = False  # other calls of the attempt wait until it has ended
    enclosing: "BreakerCall | None" = None  # the nearest one around it of the same breaker
    shares_probe_of: "BreakerCall | None" = None  # the one around it whose probe it is part of
    result_left: CallResult | None = None  # what it still has to report after a call inside it has reported

    def find_enclosing(self) -> "BreakerCall | None":
        """The nearest call around it that has the same breaker."""
        outer = self.outer
        while outer is not None:
            if outer.inside and outer.name == self.name and outer.attempt is self.attempt:
                return outer
            outer = outer.outer
        return None

    @property
    def probe_holder(self) -> "BreakerCall | None":
        """The probe that calls inside this one are part of, if there is one."""
        holder = self.shares_probe_of or self
        return holder if holder.entry is not None and holder.entry.probe else None

    def entered(self, entry: Entry, enclosing: "BreakerCall | None") -> None:
        holder = None if enclosing is None else enclosing.probe_holder
        self.entry, self.inside, self.enclosing = entry, True, enclosing
        if holder is not None and holder.entry == entry:
            self.shares_probe_of = holder

    def result_to_report(self, result: CallResult) -> CallResult:
        """The result to report now: each failure or success is reported once, by the innermost block around it."""
        if self.result_left is not None:
            result = self.result_left
        elif result.clear:
            outer = self.enclosing
            while outer is not None:
                outer.result_left = outer.result_left or CallResult.UNCLEAR
                outer = outer.enclosing
        if self.shares_probe_of is None or result is CallResult.BAD:
            return result
        # The probe lasts until its holder ends, so that the rest of its calls is not rejected.
        if result is CallResult.GOOD:
            self.shares_probe_of.result_left = CallResult.GOOD
        return CallResult.UNCLEAR


INNERMOST: ContextVar[BreakerCall | None] = ContextVar("dutiful_innermost_breaker", default=None)
"""Tasks started inside a breaker's block inherit it."""


class AttemptBreakers:
    """The breakers of one attempt, whose concurrent calls never reject each other."""

    def __init__(self, client: BreakerClient, token: ClaimToken, slot: Slot, result_of: ResultOf) -> None:
        """`result_of` returns the result to report for a block that ended with an error, or None."""
        self.client = client
        self.result_of = result_of
        self._token = token
        self._slot = slot
        self._blocks: list[BreakerCall] = []  # that the handler is in, the innermost last
        self._turns: dict[str, asyncio.Lock] = {}
        self._declared: BreakerCall | None = None

    async def enter(self, call: BreakerCall) -> None:
        """Raises BreakerOpen if the call is rejected, also inside a block that was admitted.

        While another call of this job probes, this one waits for a while, because the probe may close the breaker. Then
        it continues, because the probe may be waiting for it.
        """
        enclosing = call.find_enclosing() or self._declared_call(call.name)
        if enclosing is None or enclosing.probe_holder is None:
            call.has_turn = await self._take_turn(call.name)
        try:
            call.entered(await self.client.enter(call.name, self._token), enclosing)
            self._blocks.append(call)
            if self._slot.claim is not None and self._slot.claim.claim_id == self._token.claim_id:
                self._slot.on_left = self.leave_blocks
        finally:
            if call.entry is None or not call.entry.probe:
                self._end_turn(call)
        if call.abandoned:
            await self.exit(call, CallResult.UNCLEAR)

    async def exit(self, call: BreakerCall, result: CallResult) -> None:
        entry, call.entry, call.inside = call.entry, None, False
        if entry is None:
            return
        self._blocks.remove(call)
        result = call.result_to_report(result)
        try:
            if call.shares_probe_of is None or result is not CallResult.UNCLEAR:
                await self.client.report(call.name, self._token, entry, result)
        finally:
            self._end_turn(call)

    def abandon(self, call: BreakerCall) -> None:
        """Gives up a call whose thread was interrupted while it waited; it may just have been admitted."""
        call.abandoned = True
        if call.inside:
            self.client.loop.create_task(self.exit(call, CallResult.UNCLEAR))

    async def leave_blocks(self, result: CallResult) -> None:
        """Ends the blocks of a handler that does not stop; what it reports later changes nothing."""
        for call in reversed(self._blocks[:]):
            if call is not self._declared:
                await self.exit(call, result)

    async def _take_turn(self, name: str) -> bool:
        turn = self._turns.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout(self.client.probe_wait(name)):
                return await turn.acquire()
        except TimeoutError:
            return False

    def _end_turn(self, call: BreakerCall) -> None:
        if call.has_turn:
            call.has_turn = False
            self._turns[call.name].release()

    # --- declared on the kind

    def _declared_call(self, name: str) -> BreakerCall | None:
        """The call that spans the whole attempt, if its kind declares this breaker."""
        declared = self._declared
        return declared if declared is not None and declared.inside and declared.name == name else None

    async def enter_declared(self, name: str) -> BreakerOpen | None:
        """Enters for the whole attempt, before its handler begins; returns the error if the breaker rejects it."""
        call = BreakerCall(self, name, None)
        try:
            await self.enter(call)
        except BreakerOpen as error:
            return error
        self._declared = call
        return None

    async def exit_declared(self, result: CallResult) -> None:
        """Exits for the whole attempt, whose outcome does not depend on this."""
        if self._declared is not None:
            try:
                await self.exit(self._declared, result)
            except asyncio.CancelledError:
                log.debug(
                    "breaker %s: the result of an attempt is reported while the worker stops", self._declared.name
                )


class NamedBreaker:
    """Implements dutiful.context.BreakerBlock."""

    def __init__(self, attempt: AttemptBreakers, name: str) -> None:
        self._attempt = attempt
        self._name = name
        self._call: BreakerCall | None = None

    async def __aenter__(self) -> Self:
        if asyncio.get_running_loop() is not self._attempt.client.loop:
            raise UsageError(
                f"the breaker {self._name} is entered on another event loop than the worker's; use plain `with`"
            )
        call = self._begin()
        await self._attempt.enter(call)
        return self._entered(call)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        call = self._end()
        await self._attempt.exit(call, self._attempt.result_of(error))

    def __enter__(self) -> Self:
        if on_event_loop():
            raise UsageError(
                f"the breaker {self._name} is entered on an event loop, which would stand still; use `async with`, "
                "and call a blocking function that it decorates by `await asyncio.to_thread(function, …)`"
            )
        call, loop = self._begin(), self._attempt.client.loop
        try:
            LoopCall(loop, partial(self._attempt.enter, call)).wait()
        except BreakerOpen:
            raise
        except BaseException:
            loop.call_soon_threadsafe(self._attempt.abandon, call)
            raise
        return self._entered(call)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        call = self._end()
        result = self._attempt.result_of(error)
        try:
            LoopCall(self._attempt.client.loop, partial(self._attempt.exit, call, result)).wait()
        except LoopCancelled:
            log.warning(
                "breaker %s: a call was %s, which was not reported because the worker has ended", self._name, result
            )

    def _begin(self) -> BreakerCall:
        if self._call is not None:
            raise UsageError(f"this block of the breaker {self._name} is entered already; ask for another: ctx.breaker")
        return BreakerCall(self._attempt, self._name, INNERMOST.get())

    def _entered(self, call: BreakerCall) -> Self:
        INNERMOST.set(call)
        self._call = call
        return self

    def _end(self) -> BreakerCall:
        call, self._call = self._call, None
        if call is None:
            raise UsageError(f"the breaker {self._name} is not entered")
        INNERMOST.set(call.outer)
        return call
