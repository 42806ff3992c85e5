"""The breakers of one worker: asks the fleet before a call, and tells it how the call ended."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from dutiful.breaking import Breaking
from dutiful.core.breaker import Barred, Breaker, BreakerPolicy, BreakerState, Entry, Sign
from dutiful.core.errors import BreakerOpen, DutifulError
from dutiful.core.job import Token
from dutiful.kind import Kind

log = logging.getLogger("dutiful.worker")
PATIENCE = 5.0  # how long a block that has ended waits until that is stored; it is told all the same
TURN = 10.0  # the longest that one call of a job waits for another one of it that probes
TRUSTED = 0.25  # how long it is believed that a kind's jobs wait, for what was claimed ahead is barred job by job


def boundless(kinds: Iterable[Kind[Any, Any]]) -> list[str]:
    """Kinds that declare a breaker and have no timeout: one that hangs as a probe holds up all who wait for it."""
    return sorted(kind.name for kind in kinds if kind.breaker is not None and not _ends_in_time(kind))


def _ends_in_time(kind: Kind[Any, Any]) -> bool:
    phases = kind.phases
    return kind.timeout is not None or (bool(phases) and all(phase.timeout is not None for phase in phases))


class Breakers:
    def __init__(self, breaking: Breaking, policies: Mapping[str, BreakerPolicy], default: BreakerPolicy) -> None:
        """`default` is for names that the code does not declare."""
        self.loop = asyncio.get_running_loop()
        self._breaking = breaking
        self._policies = policies
        self._default = default
        self._telling: set[asyncio.Task[None]] = set()
        self._said: dict[str, int] = {}  # by breaker: the round that was logged last
        self._held_back: dict[str, float] = {}  # by kind: when that was seen

    async def ask(self, name: str, token: Token) -> Entry:
        """Be let in, or BreakerOpen; whoever stops waiting for the answer leaves no probe's place taken behind."""
        policy = self._policies.get(name, self._default)
        asking = asyncio.ensure_future(self._breaking.enter_breaker(name, policy, token))
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda asked: self._decline(name, token, asked))
            raise
        if isinstance(answer, Barred):
            raise BreakerOpen(name, answer.until, answer.wait)
        return answer

    def longest_turn(self, name: str) -> float:
        return min(self._policies.get(name, self._default).open_for.total_seconds(), TURN)

    async def hold_back(self, kind: str, name: str) -> bool:
        """Have jobs of the kind wait for its breaker; False if they do not, and would be claimed again at once.

        A worker of a version in which the kind declared none may have started after us.
        """
        if time.monotonic() - self._held_back.get(kind, -TRUSTED) < TRUSTED:
            return True
        policies = {name: self._policies[name]} if name in self._policies else None
        try:
            held = await self._breaking.breaker_of_kind(kind) == name
            if not held:
                await self._breaking.put_breaker_kinds({kind: name}, policies)
                held = await self._breaking.breaker_of_kind(kind) == name
        except DutifulError as error:
            log.warning("breaker %s: jobs of kind %s cannot be held back: %s", name, kind, error)
            return False
        if held:
            self._held_back[kind] = time.monotonic()
        return held

    def tell(self, name: str, token: Token, entry: Entry, sign: Sign) -> "asyncio.Task[None]":
        """Say how it ended, in a task that nobody interrupts and that never fails."""
        telling = self.loop.create_task(self._tell(name, token, entry, sign))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)
        return telling

    async def told(self, name: str, token: Token, entry: Entry, sign: Sign) -> None:
        """Say how it ended, and wait a while until that is stored."""
        if not (sign.clear or entry.probe):
            return  # nobody would learn anything from it
        telling = self.tell(name, token, entry, sign)
        _, late = await asyncio.wait({telling}, timeout=PATIENCE)
        if late:
            log.warning("breaker %s: the store takes long to hear of a call that was %s", name, sign)

    async def close(self) -> None:
        if self._telling:
            await asyncio.wait(set(self._telling), timeout=PATIENCE)

    def _decline(self, name: str, token: Token, asked: "asyncio.Future[Entry | Barred]") -> None:
        if asked.cancelled() or asked.exception() is not None:
            return
        answer = asked.result()
        if isinstance(answer, Entry) and answer.probe:
            self.tell(name, token, answer, Sign.UNCLEAR)

    async def _tell(self, name: str, token: Token, entry: Entry, sign: Sign) -> None:
        policy = self._policies.get(name, self._default)
        try:
            after = await self._breaking.leave_breaker(name, policy, token, entry, sign)
        except DutifulError as error:
            # The call itself went as it went. A probe's place is free again when its job has ended.
            log.warning("breaker %s: a call was %s, which could not be stored: %s", name, sign, error)
        except Exception:
            log.exception("breaker %s: a call was %s, which could not be stored", name, sign)
        else:
            self._report(after, entry, sign)

    def _report(self, after: Breaker, entry: Entry, sign: Sign) -> None:
        """Whoever's call has changed its state says so, once."""
        if after.round != entry.round + 1 or self._said.get(after.name) == after.round:
            return
        match after.state, sign:
            case BreakerState.OPEN, Sign.BAD:
                log.warning("breaker %s has opened: no calls before %s", after.name, after.open_until)
            case BreakerState.CLOSED, Sign.GOOD:
                log.info("breaker %s is closed again", after.name)
            case BreakerState.CLOSED, Sign.NEUTRAL:
                log.info("breaker %s is closed again, for no call has spoken against its service", after.name)
            case _:
                return
        self._said[after.name] = after.round
