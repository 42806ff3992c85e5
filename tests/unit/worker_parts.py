"""Claims, and a store in the test's hand, for the parts of a worker: each call is noted, and can fail or wait."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.errors import StoreUnavailable
from dutiful.core.job import Claim, HeldClaim
from dutiful.core.settle import Policy
from dutiful.observe.outage import OutageLog
from dutiful.settings import Settings
from dutiful.store.claims import Renewal

WORKER = UUID(int=0xADA)
AWAY = StoreUnavailable("the store is away")


def new_claim(number: int = 1, **fields: Any) -> Claim:
    return Claim(
        **{
            "job_id": UUID(int=number),
            "claim_id": number,
            "attempt": 1,
            "crashes": 0,
            "seq": number,
            "kind": "greet",
            "queue": "default",
            "payload": "{}",
            "priority": 100,
            "max_attempts": 5,
            "tenant": None,
            "correlation_id": None,
            "parent_id": None,
            "subject": None,
            "options": None,
            **fields,
        }
    )


def held(claim: Claim, **fields: Any) -> HeldClaim:
    known = {"attempt": 1, "crashes": 0, "kind": claim.kind, "worker_id": WORKER, "cancel_requested": False}
    return HeldClaim(claim.job_id, claim.claim_id, **{**known, **fields})


class MovingClock:
    """Stands still until it is moved; takes the place of the module `time`."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovingClock:
    moving = MovingClock()
    for module in ("leases", "settler", "lanes.fetcher"):
        monkeypatch.setattr(f"dutiful.worker.{module}.time", moving)
    return moving


class ScriptedClaims:
    """A claim store that answers what was scripted, then nothing; an answer may be an error or a function."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.answers: defaultdict[str, deque[Any]] = defaultdict(deque)
        self.skipped: list[bool] = []  # the option skip_locked of each write

    def script(self, verb: str, *answers: Any) -> None:
        self.answers[verb].extend(answers)

    def asked(self, verb: str) -> list[Any]:
        return [given for called, given in self.calls if called == verb]

    async def claim(self, request: Any) -> Any:
        return await self._answer("claim", request)

    async def held_by(self, worker_id: UUID) -> Any:
        return await self._answer("held_by", worker_id)

    async def complete(self, done: Sequence[Any], *, skip_locked: bool = False) -> Any:
        self.skipped.append(skip_locked)
        return await self._answer("complete", list(done))

    async def settle(self, changes: Sequence[Any], *, skip_locked: bool = False) -> Any:
        self.skipped.append(skip_locked)
        return await self._answer("settle", list(changes))

    async def _answer(self, verb: str, given: Any) -> Any:
        self.calls.append((verb, given))
        answer = self.answers[verb].popleft() if self.answers[verb] else []
        if callable(answer):
            answer = await answer(given)
        if isinstance(answer, Exception):
            raise answer
        return answer


class ScriptedRenewer:
    """A lease renewer that answers what was scripted, then that all is well."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.leases: list[Any] = []
        self.answers: defaultdict[str, deque[Any]] = defaultdict(deque)
        self.opened = 0
        self.closed = 0

    def open(self) -> "ScriptedRenewer":
        self.opened += 1
        return self

    def renew(self, tokens: Sequence[Any], lease: Any) -> Renewal:
        self.leases.append(lease)
        return self._answer("renew", tokens)

    def check(self, tokens: Sequence[Any]) -> Renewal:
        return self._answer("check", tokens)

    def release(self, tokens: Sequence[Any]) -> None:
        self._answer("release", tokens)

    def close(self) -> None:
        self.closed += 1

    def _answer(self, verb: str, tokens: Sequence[Any]) -> Renewal:
        self.calls.append((verb, [token.claim_id for token in tokens]))
        answer = self.answers[verb].popleft() if self.answers[verb] else Renewal()
        if isinstance(answer, Exception):
            raise answer
        return answer


GREET = SimpleNamespace(policy=Policy(), batch=None)


def config_of(claims: Any, **settings: Any) -> Any:
    """What a part reads of a WorkerConfig."""
    store = SimpleNamespace(claims=claims)
    return SimpleNamespace(
        inbox=None,
        store=store,
        worker_id=WORKER,
        kinds={"greet": GREET},
        settings=Settings(**settings),
        outages=OutageLog(),
    )


def after(gate: asyncio.Event, answer: Any) -> Callable[[Any], Awaitable[Any]]:
    """An answer that comes once the gate is open."""

    async def wait(given: Any) -> Any:
        await gate.wait()
        return answer

    return wait
