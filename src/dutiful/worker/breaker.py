"""A breaker as handlers use it: `async with ctx.breaker(…)`, `with ctx.breaker(…)` in a thread, or around all of it."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError as GivenUp
from functools import partial
from types import TracebackType
from typing import Self

from dutiful.core.breaker import Sign
from dutiful.core.errors import BreakerOpen, UsageError
from dutiful.core.job import Token
from dutiful.errand import Errand
from dutiful.worker.breakers import Breakers
from dutiful.worker.passage import INNERMOST, Passage

log = logging.getLogger("dutiful.worker")
Reading = Callable[[BaseException | None], Sign]


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
        """BreakerOpen if it is barred, be it inside a block that was not.

        While another call of this job probes it waits for a while, for that may close the breaker. Then it goes along
        with it: the other one may be waiting for this one.
        """
        within = passage.around() or self._whole(passage.name)
        if within is None or within.place is None:
            passage.turn = await self._take_turn(passage.name)
        try:
            passage.let_in(await self.breakers.ask(passage.name, self._token), within)
        finally:
            if passage.entry is None or not passage.entry.probe:
                self._end_turn(passage)
        if passage.unwanted:
            await self.leave(passage, Sign.UNCLEAR)

    async def leave(self, passage: Passage, sign: Sign) -> None:
        entry, passage.entry, passage.inside = passage.entry, None, False
        if entry is None:
            return
        sign = passage.speaks(sign)
        try:
            if passage.holder is None or sign is not Sign.UNCLEAR:
                await self.breakers.told(passage.name, self._token, entry, sign)
        finally:
            self._end_turn(passage)

    def abandon(self, passage: Passage) -> None:
        """Its thread was interrupted while it waited, perhaps when it had just been let in."""
        passage.unwanted = True
        if passage.inside:
            self.breakers.loop.create_task(self.leave(passage, Sign.UNCLEAR))

    async def _take_turn(self, name: str) -> bool:
        turn = self._turns.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout(self.breakers.longest_turn(name)):
                return await turn.acquire()
        except TimeoutError:
            return False

    def _end_turn(self, passage: Passage) -> None:
        if passage.turn:
            passage.turn = False
            self._turns[passage.name].release()

    # --- declared on the kind

    def _whole(self, name: str) -> Passage | None:
        """The passage of the whole attempt, if its kind declares this breaker."""
        declared = self._declared
        return declared if declared is not None and declared.inside and declared.name == name else None

    async def let_in(self, name: str) -> BreakerOpen | None:
        """Enter for the whole attempt, before its handler begins; what bars it, if anything does."""
        passage = Passage(self, name, None)
        try:
            await self.enter(passage)
        except BreakerOpen as error:
            return error
        self._declared = passage
        return None

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
                f"the breaker {self._name} is entered on an event loop, which would stand still; use `async with`, "
                "and call a blocking function that it decorates by `await asyncio.to_thread(function, …)`"
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
