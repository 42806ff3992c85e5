"""The handler's view of its attempt."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec

from dutiful.context import JobTransaction
from dutiful.core import ids
from dutiful.core.errors import ClaimLost, JobCancelled, UsageError
from dutiful.core.job import Claim, Token
from dutiful.core.outcome import TimeoutExceeded
from dutiful.core.payload import encode
from dutiful.store import Transaction, Work
from dutiful.worker.slot import Slot, Stop


class AttemptContext:
    """Implements dutiful.Context for one claim; sees the store through its narrow ports only."""

    __slots__ = ("_claim", "_limit", "_slot", "_work", "entrusted", "settled")

    def __init__(self, claim: Claim, slot: Slot, work: Work, result_limit: int) -> None:
        self._claim = claim
        self._slot = slot
        self._work = work
        self._limit = result_limit
        self.settled = False  # completed in a transaction: nothing is left to settle
        self.entrusted = False  # completed in the user's own transaction, whose commit nobody tells us of

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
        payload: dict[str, Any] = msgspec.json.decode(self._claim.payload)
        return payload

    @property
    def cancelled(self) -> bool:
        return self._slot.claim is not self._claim or self._slot.stop is not None

    def check(self) -> None:
        if not self.cancelled:
            return
        match self._slot.stop:
            case Stop.TIMEOUT:
                raise TimeoutExceeded(f"ran longer than {self._slot.kind.timeout if self._slot.kind else 'allowed'}")
            case Stop.CANCEL:
                raise JobCancelled("the job was cancelled")
            case _:
                raise ClaimLost("the job is no longer ours")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[JobTransaction]:
        self._refuse_second()
        result = _Result(self._limit)
        async with self._work.transaction(self._token, result.text) as inner:
            yield _JobTransaction(inner, result)
        self.settled = True

    async def complete_in(self, session: Any, result: Any = None) -> None:
        self._refuse_second()
        await self._work.complete_within(session, self._token, _text(result, self._limit))
        self.entrusted = True

    def complete_in_sync(self, session: Any, result: Any = None) -> None:
        self._refuse_second()
        self._work.complete_within_sync(session, self._token, _text(result, self._limit))
        self.entrusted = True

    @property
    def _token(self) -> Token:
        return Token(self._claim.job_id, self._claim.claim_id)

    def _refuse_second(self) -> None:
        if self.settled or self.entrusted:
            raise UsageError("this job is completed already; the transaction is the last thing a handler does")


class _Result:
    def __init__(self, limit: int) -> None:
        self.value: Any = None
        self._limit = limit

    def text(self) -> str | None:
        return _text(self.value, self._limit)


class _JobTransaction:
    def __init__(self, inner: Transaction, result: _Result) -> None:
        self._inner = inner
        self._result = result

    async def execute(self, statement: str, *args: Any) -> None:
        await self._inner.execute(statement, *args)

    @property
    def connection(self) -> Any:
        return self._inner.connection

    def complete(self, result: Any) -> None:
        self._result.value = result


def _text(value: Any, limit: int) -> str | None:
    return None if value is None else encode(value, what="result", limit=limit)
