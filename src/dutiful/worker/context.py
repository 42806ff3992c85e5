"""The handler's view of its attempt."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from dutiful.context import BreakerBlock, ItemName, Items, JobTransaction, Lock
from dutiful.core import ids
from dutiful.core.breaker import Sign
from dutiful.core.errors import ClaimLost, JobCancelled, UsageError
from dutiful.core.job import Claim, Token
from dutiful.core.outcome import Released, Snoozed, TimeoutExceeded
from dutiful.core.payload import check_name
from dutiful.core.transitions import State
from dutiful.errand import Errand
from dutiful.kind import Phase
from dutiful.worker.breaker import AttemptBreakers, NamedBreaker, PassThrough
from dutiful.worker.ending import sign_of_error, until_it_may_call
from dutiful.worker.items import KEPT_ERRORS, TrackedItems, each, failures
from dutiful.worker.job_transaction import OwnTransaction, Result, text_of
from dutiful.worker.lock import AttemptLocks, NamedLock, lock_name
from dutiful.worker.ports import Ports
from dutiful.worker.slot import Slot, Stop
from dutiful.worker.track import Track
from dutiful.working import Errors

T = TypeVar("T")


class AttemptContext:
    """Implements dutiful.Context for one claim; sees the store through its narrow ports only."""

    __slots__ = (
        "_breakers",
        "_claim",
        "_locks",
        "_payload",
        "_phase",
        "_ports",
        "_results",
        "_slot",
        "blemishes",
        "entrusted",
        "phase_attempt",
        "settled",
        "tracked",
    )

    def __init__(self, claim: Claim, slot: Slot, ports: Ports) -> None:
        self._claim = claim
        self._payload = claim.payload
        self._slot = slot
        self._ports = ports
        self._locks: AttemptLocks | None = None  # those of this attempt, once it wants one
        self._breakers: AttemptBreakers | None = None
        self._phase: Phase | None = None
        self._results: dict[str, str | None] | None = None  # of phases that have ended, as JSON text
        self.blemishes: tuple[dict[str, Any], ...] = ()  # errors in spite of which the pipeline went on
        self.phase_attempt: int | None = None
        self.tracked: Track | None = None  # made when the job first speaks of its progress
        self.settled: State | None = None  # what its own transaction made of it: nothing is left to settle
        self.entrusted: State | None = None  # the same in the user's own, whose commit nobody tells us of

    @property
    def job_id(self) -> UUID:
        return self._claim.job_id

    @property
    def public_id(self) -> str:
        return ids.public(self._claim.job_id)

    @property
    def kind(self) -> str:
        return self._claim.kind

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def attempt(self) -> int:
        return self._claim.attempt

    @property
    def max_attempts(self) -> int:
        return self._claim.max_attempts

    @property
    def correlation_id(self) -> str:
        return self._claim.correlation

    @property
    def parent_id(self) -> UUID | None:
        return self._claim.parent_id

    @property
    def tenant(self) -> str | None:
        return self._claim.tenant

    @property
    def subject(self) -> Mapping[str, Any]:
        return msgspec.json.decode(self._claim.subject) if self._claim.subject else {}

    @property
    def payload(self) -> Mapping[str, Any]:
        payload: dict[str, Any] = msgspec.json.decode(self._payload)
        return payload

    def upgrade(self, payload: str) -> None:
        """Show the payload as its kind's rules have it, in their current version."""
        self._payload = payload

    @property
    def options(self) -> Mapping[str, Any]:
        return msgspec.json.decode(self._claim.options) if self._claim.options else {}

    @property
    def cancelled(self) -> bool:
        return self._slot.claim is not self._claim or self._slot.stop is not None

    def check(self) -> None:
        if not self.cancelled:
            return
        match self._slot.stop:
            case Stop.TIMEOUT:
                raise TimeoutExceeded(f"ran longer than {self._slot.allowed or 'allowed'}")
            case Stop.CANCEL:
                raise JobCancelled("the job was cancelled")
            case _:
                raise ClaimLost("the job is no longer ours")

    def lock(self, namespace: str, key: ItemName) -> Lock:
        name = lock_name(namespace, key)
        if self._ports.locks is None:
            raise UsageError("there are no locks in inline mode: test this handler with testing.app_on(app)")
        if self._locks is None:
            self._locks = AttemptLocks(self._ports.locks, self._token)
        return NamedLock(self._locks, name)

    def free_locks(self) -> None:
        """The attempt has ended, or a phase of it: nothing that it left behind is held any longer."""
        if self._locks is not None:
            self._locks.end()

    # --- breakers

    def breaker(self, name: str) -> BreakerBlock:
        name = str.__str__(check_name(name, "breaker"))
        return PassThrough() if self._ports.breakers is None else NamedBreaker(self._own_breakers, name)

    async def let_in(self, breaker: str) -> Released | Snoozed | None:
        """Enter the breaker that the kind declares; what becomes of an attempt that it does not let begin."""
        if self._ports.breakers is None or (error := await self._own_breakers.let_in(breaker)) is None:
            return None
        # Given back, it waits with the others of its kind until the breaker lets one try.
        waits = await self._ports.breakers.hold_back(self._claim.kind, breaker)
        return Released() if waits else until_it_may_call(error)

    async def let_out(self, sign: Sign) -> None:
        if self._breakers is not None:
            await self._breakers.let_out(sign)

    @property
    def _own_breakers(self) -> AttemptBreakers:
        if self._breakers is None:
            assert self._ports.breakers is not None
            self._breakers = AttemptBreakers(self._ports.breakers, self._token, self._sign_of)
        return self._breakers

    def _sign_of(self, error: BaseException | None) -> Sign:
        kind = self._slot.kind
        if error is not None and (self._slot.claim is not self._claim or kind is None):
            return Sign.UNCLEAR  # the attempt has ended without it
        own = None if self._phase is None else self._phase.retry
        return Sign.GOOD if kind is None else sign_of_error(error, self._slot, own or kind.policy.retry)

    # --- phases

    @property
    def phase(self) -> str | None:
        return None if self._phase is None else self._phase.name

    def result(self, phase: str) -> Any:
        kept = self.kept(phase)
        return None if kept is None else msgspec.json.decode(kept)

    def results(self) -> Mapping[str, Any]:
        return {name: self.result(name) for name in self._results or ()}

    def enter(self, phase: Phase, attempt: int = 1) -> None:
        """It begins, or its condition is looked at."""
        self._phase, self.phase_attempt = phase, attempt
        self.track.enter(phase.name, phase.position)

    def keep(self, phase: str, result: str | None) -> None:
        """The phase has ended; later ones may ask for its result, JSON text."""
        self._results = {**(self._results or {}), phase: result}

    def kept(self, phase: str) -> str | None:
        if phase not in (self._results or {}):
            ended = ", ".join(self._results or {}) or "none"
            raise UsageError(f"there is no result of a phase {phase!r}: it has not ended; those that have are: {ended}")
        return (self._results or {})[phase]

    # --- progress

    @property
    def track(self) -> Track:
        if self.tracked is None:
            self.tracked = Track(self._claim, self._ports.reporter, self._phase_count or 1)
        return self.tracked

    def progress(self, percent: float | None = None, message: str | None = None) -> None:
        self.track.progress(percent, message)

    def items(self, names: Iterable[ItemName]) -> Items:
        return TrackedItems(self.track, names, self._told_to_stop)

    async def each(
        self,
        items: Iterable[T],
        work: Callable[[T], Awaitable[Any]],
        *,
        concurrency: int = 8,
        name: Callable[[T], ItemName] | None = None,
    ) -> Items:
        return await each(self.track, items, work, concurrency, name, self._told_to_stop)

    def _told_to_stop(self) -> bool:
        return self.cancelled

    # --- the user's own writes

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[JobTransaction]:
        self._check_last()
        await self._last_word()
        own = Result(self._ports.result_limit)
        async with self._ports.work.transaction(self._token, own.text, self._errors) as inner:
            yield OwnTransaction(inner, own)
        self.settled = self._slot.settled = _state(self._errors())

    async def complete_in(self, session: Any, result: Any = None) -> None:
        self._check_last()
        errors, text = self._errors(), text_of(result, self._ports.result_limit)
        await self._last_word()
        await self._ports.work.complete_within(session, self._token, text, errors)
        self.entrusted = _state(errors)

    def complete_in_sync(self, session: Any, result: Any = None) -> None:
        self._check_last()
        errors, text = self._errors(), text_of(result, self._ports.result_limit)
        self._last_word_sync()
        self._ports.work.complete_within_sync(session, self._token, text, errors)
        self.entrusted = _state(errors)

    def _errors(self) -> Errors:
        """In spite of which the handler completes its job; ItemsFailed if it had items and every one has failed."""
        if self.tracked is None:
            return ()
        failed = failures(self.tracked.ledgers)
        if self._phase is not None:
            failed = [{**error, "phase": self._phase.name} for error in failed]
        return [*self.blemishes, *failed][:KEPT_ERRORS]

    @property
    def _phase_count(self) -> int:
        return len(self._slot.kind.phases) if self._slot.kind is not None else 0

    @property
    def _token(self) -> Token:
        return Token(self._claim.job_id, self._claim.claim_id)

    async def _last_word(self) -> None:
        """What is said later comes too late: nobody may wait for the user's transaction to write it."""
        if self.tracked is not None:
            await self._ports.reporter.last_word(self.tracked)

    def _last_word_sync(self) -> None:
        """The same from a thread; on the event loop itself nobody can wait for it."""
        if self.tracked is None or self._slot.task is None:
            return
        loop = self._slot.task.get_loop()
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is loop:
                return
        Errand(loop, self._last_word).wait()

    def _check_last(self) -> None:
        if self.settled or self.entrusted:
            raise UsageError("this job is completed already; the transaction is the last thing a handler does")
        if self._phase is not None and self._phase.position + 1 < self._phase_count:
            raise UsageError(f"phase {self._phase.name} cannot complete the job: only the last phase can")


def _state(errors: Errors) -> State:
    return State.COMPLETED_WITH_ERRORS if errors else State.COMPLETED
