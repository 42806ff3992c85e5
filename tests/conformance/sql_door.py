"""The Postgres store with claims by the published SQL functions, one call a job, as a worker in another language."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from dutiful.core.job import Claim, ClaimToken
from dutiful.core.settle import Change
from dutiful.core.states import State
from dutiful.store.claims import ClaimRequest, Completion, Refusal, RefusalReason, Renewal
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.postgres.claims import PostgresClaims, PostgresLeaseRenewer

_COLUMNS = ", ".join(name for name in Claim.__struct_fields__ if name != "waited")


class DoorRenewer(PostgresLeaseRenewer):
    def renew(self, tokens: Sequence[ClaimToken], lease: timedelta, *, now: datetime | None = None) -> Renewal:
        found = {token: self._ask("renew_job($1, $2, $3, $4)", token, lease, now) for token in tokens}
        return Renewal(
            lost=frozenset(token.claim_id for token, answer in found.items() if answer == "lost"),
            cancel=frozenset(token.job_id for token, answer in found.items() if answer == "cancel_requested"),
        )

    def release(self, tokens: Sequence[ClaimToken]) -> None:
        for token in tokens:
            self._ask("release_job($1, $2)", token)

    def _ask(self, call: str, token: ClaimToken, *args: Any) -> str:
        if self._runner is None:
            self._runner = asyncio.Runner()
        rows = self._runner.run(self._run(f"select {self._schema}.{call}", token.job_id, token.claim_id, *args))
        return str(rows[0][0])


class DoorClaims(PostgresClaims):
    async def claim(self, ask: ClaimRequest, *, now: datetime | None = None) -> list[Claim]:
        """Calls dequeue until there is enough: it takes no floors and priorities, and returns a suspect alone."""
        claims: list[Claim] = []
        queues = list(dict.fromkeys(level.queue for level in ask.levels))
        while wanted := (ask.limit - sum(not c.crashes for c in claims)) or (ask.suspects if not ask.limit else 0):
            rows = await self._db.fetch(
                f"select {_COLUMNS} from {self._schema}.dequeue($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                list(ask.kinds), queues, wanted, ask.lease, ask.worker_id, list(ask.tenants) or None,
                ask.suspects > 0, ask.lane, now,
            )  # fmt: skip
            if not rows:
                break
            claims += [Claim(*row) for row in rows]
        return claims

    async def complete(
        self, done: Sequence[Completion], *, skip_locked: bool = False, now: datetime | None = None
    ) -> list[Refusal]:
        if skip_locked:
            return await super().complete(done, skip_locked=skip_locked, now=now)
        answers = [await self._ask("complete_job($1, $2, $3, null, $4)", one, one.result, now) for one in done]
        return _refusals(done, answers)

    async def settle(
        self, changes: Sequence[Change], *, expired_only: bool = False, skip_locked: bool = False,
        now: datetime | None = None,
    ) -> list[Refusal]:  # fmt: skip
        if expired_only or skip_locked or {change.outcome for change in changes} - _OUTCOMES:
            return await super().settle(changes, expired_only=expired_only, skip_locked=skip_locked, now=now)
        return _refusals(changes, [await self._settle(change, now) for change in changes])

    def renewer(self) -> DoorRenewer:
        return DoorRenewer(self._db.dsn, self._schema, pooled=self._db.pooled, first=self._db.first)

    async def _settle(self, change: Change, now: datetime | None) -> str:
        match change.outcome:
            case "done":
                return await self._ask("complete_job($1, $2, $3, null, $4)", change, change.result, now)
            case "partial":
                errors = msgspec.json.encode(change.errors).decode()
                return await self._ask("complete_job($1, $2, $3, $4, $5)", change, change.result, errors, now)
            case "released":
                return await self._ask("release_job($1, $2, $3)", change, now)
        retry, delay, error = change.to is not State.FAILED, change.delay or timedelta(0), change.errors[0]
        call = "fail_job($1, $2, $3, $4, $5, $6, $7)"
        return await self._ask(call, change, error["message"], retry, delay, error["type"], now)

    async def _ask(self, call: str, one: Change | Completion, *args: Any) -> str:
        rows = await self._db.fetch(f"select {self._schema}.{call}", one.job_id, one.claim_id, *args)
        return str(rows[0][0])


_OUTCOMES = {"done", "partial", "failed", "released"}
_REFUSED = {"lost": RefusalReason.LOST, "repeated": RefusalReason.REPEATED, "cancelled": RefusalReason.CANCEL_REQUESTED}


def _refusals(settled: Sequence[Change | Completion], answers: Sequence[str]) -> list[Refusal]:
    pairs = zip(settled, answers, strict=True)
    return [Refusal(one.job_id, one.claim_id, _REFUSED[answer]) for one, answer in pairs if answer in _REFUSED]


class DoorStore(PostgresStore):
    def _attach(self, session: Any) -> None:
        super()._attach(session)
        self.claims = DoorClaims(session)
