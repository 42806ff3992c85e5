"""A breaker as handlers use it: `async with ctx.breaker(…)`, `with ctx.breaker(…)` in a thread, or around all of it."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError as GivenUp
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Self

from dutiful.core.breaker import Entry, Sign
from dutiful.core.errors import BreakerOpen, UsageError
from dutiful.core.job import Token
from dutiful.errand import Errand
from dutiful.worker.breakers import Breakers

log = logging.getLogger("dutiful.worker")
Reading = Callable[[BaseException | None], Sign]


class Passage:
    """Once through one breaker; `outer` is the one inside whose block it was asked for."""

    __slots__ = ("attempt", "entry", "inside", "name", "outer", "unwanted")

    def __init__(self, attempt: "AttemptBreakers", name: str, outer: "Passage | None") -> None:
        self.attempt = attempt
        self.name = name
        self.outer = outer
        self.entry: Entry | None = None
        self.inside = False
        self.unwanted = False

    @property
    def nested(self) -> bool:
        """Whether a block around it has the same breaker: then the call counts once, as that one's."""
        outer = self.outer
        while outer is not None:
            if outer.inside and outer.name == self.name and outer.attempt is self.attempt:
                return True
            outer = outer.outer
        return False


INNERMOST: ContextVar[Passage | None] = ContextVar("dutiful_innermost_breaker", default=None)
"""Tasks that are started inside a breaker's block inherit it."""


class AttemptBreakers:
    """The breakers of one attempt: what it does several times at once is one job's, and never bars itself."""

    def __init__(self, breakers: Breakers, token: Token, reading: Reading) -> None:
        """`reading` says what an error tells of the service that was called."""
        self.breakers = breakers
        self.reading = reading
        self._token = token
        self._turns: dict[str, asyncio.Lock] = {}
        self._declared: Passage | None = None

    async def enter(self, passage: Passage) -> None:
        """Wait while another call of this job probes, for it may close the breaker; BreakerOpen if it is barred."""
        if passage.nested or (self._declared is not None and self._declared.name == passage.name):
            return
        turn = self._turns.setdefault(passage.name, asyncio.Lock())
        await turn.acquire()
        try:
            passage.entry = await self.breakers.ask(passage.name, self._token)
        finally:
            if passage.entry is None or not passage.entry.probe:
                turn.release()
        passage.inside = True
        if passage.unwanted:
            await self.leave(passage, Sign.UNCLEAR)

    async def leave(self, passage: Passage, sign: Sign) -> None:
        entry, passage.entry, passage.inside = passage.entry, None, False
        if entry is None:
            return
        try:
            await self.breakers.told(passage.name, self._token, entry, sign)
        finally:
            if entry.probe:
                self._turns[passage.name].release()

    def abandon(self, passage: Passage) -> None:
        """Its thread was interrupted while it waited, perhaps when it had just been let in."""
        passage.unwanted = True
        if passage.inside:
            self.breakers.loop.create_task(self.leave(passage, Sign.UNCLEAR))

    # --- declared on the kind

    async def let_in(self, name: str) -> bool:
        """Enter for the whole attempt, before its handler begins; False if it is barred."""
        passage = Passage(self, name, None)
        try:
            await self.enter(passage)
        except BreakerOpen:
            return False
        self._declared = passage
        return True

    async def let_out(self, sign: Sign) -> None:
        """The attempt has ended; its outcome does not depend on this."""
        if self._declared is not None:
            try:
                await self.leave(self._declared, sign)
            except asyncio.CancelledError:
                log.debug("breaker %s is told of an attempt while the worker stops", self._declared.name)


class NamedBreaker:
    """Implements dutiful.context.BreakerBlock."""

    def __init__(self, attempt: AttemptBreakers, name: str) -> None:
        self._attempt = attempt
        self._name = name
        self._passage: Passage | None = None

    async def __aenter__(self) -> Self:
        if asyncio.get_running_loop() is not self._attempt.breakers.loop:
            raise UsageError(
                f"the breaker {self._name} is entered on another event loop than the worker's; use plain `with`"
            )
        passage = self._begun()
        await self._attempt.enter(passage)
        return self._entered(passage)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        passage = self._left()
        await self._attempt.leave(passage, self._attempt.reading(error))

    def __enter__(self) -> Self:
        if _on_event_loop():
            raise UsageError(
                f"the breaker {self._name} is entered on an event loop, which would stand still; use `async with`"
            )
        passage, loop = self._begun(), self._attempt.breakers.loop
        try:
            Errand(loop, partial(self._attempt.enter, passage)).wait()
        except BreakerOpen:
            raise
        except BaseException:
            loop.call_soon_threadsafe(self._attempt.abandon, passage)
            raise
        return self._entered(passage)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        passage = self._left()
        sign = self._attempt.reading(error)
        try:
            Errand(self._attempt.breakers.loop, partial(self._attempt.leave, passage, sign)).wait()
        except GivenUp:
            log.warning("breaker %s: a call was %s, which the worker did not live to hear", self._name, sign)

    def _begun(self) -> Passage:
        if self._passage is not None:
            raise UsageError(f"this block of the breaker {self._name} is entered already; ask for another: ctx.breaker")
        return Passage(self._attempt, self._name, INNERMOST.get())

    def _entered(self, passage: Passage) -> Self:
        INNERMOST.set(passage)
        self._passage = passage
        return self

    def _left(self) -> Passage:
        passage, self._passage = self._passage, None
        if passage is None:
            raise UsageError(f"the breaker {self._name} is not entered")
        INNERMOST.set(passage.outer)
        return passage


class PassThrough:
    """A breaker where there is no fleet to ask, as in inline mode: every call is made, and nobody counts."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        return None


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
