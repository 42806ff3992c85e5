"""One act on many dead letters: looked at first, then begun, then taken step by step."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful import bulk
from dutiful.core import ids
from dutiful.core.audit import AuditOutcome
from dutiful.core.errors import BulkRunNotFound, IllegalTransition, UsageError
from dutiful.core.principal import Role
from dutiful.core.review import ReviewAct, from_states
from dutiful.operator.dead_letters import DeadLetters
from dutiful.operator.door import recordable
from dutiful.reviewing import BulkRun, BulkState, DeadLetter, DeadLetterFilter, DeadLetterGroup

SAMPLE = 10
INSTANT = timedelta(microseconds=1)  # the smallest that databases know


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a bulk run would meet now: how many, the newest of them, and the largest groups of errors."""

    act: ReviewAct
    count: int
    sample: list[DeadLetter]
    groups: list[DeadLetterGroup]


class Bulk(DeadLetters):
    async def preview(self, act: ReviewAct, filter: DeadLetterFilter) -> Preview:
        wanted = self._for_act(act, filter)
        return Preview(
            act=act,
            count=await self._store.dead_letter_count(wanted),
            sample=await self._store.dead_letters(wanted, limit=SAMPLE),
            groups=await self._store.dead_letter_groups(wanted, SAMPLE),
        )

    async def start_bulk(self, act: ReviewAct, filter: DeadLetterFilter, reason: str | None = None) -> BulkRun:
        """Begin a run, which the services of any worker take to its end, or whoever calls step_bulk."""
        now, who = datetime.now(UTC), self.principal
        run_id = uuid_utils.compat.uuid7()
        async with self._act(
            "dead_letter.bulk",
            ids.public(run_id),
            reason,
            tenant=filter.tenant,
            before={"act": act},
            act=run_id,
            check=lambda: self._for_act(act, filter),
        ) as acting:
            wanted = self._for_act(act, filter)
            # Nothing that dies from now on, be it what this run itself has made. By the time of the newest, for the
            # clock of the database may go before or after ours.
            newest = await self._store.dead_letters(wanted, limit=1)
            until = newest[0].died_at + INSTANT if newest else now if wanted.until is None else min(wanted.until, now)
            wanted = msgspec.structs.replace(wanted, until=until)
            run = BulkRun(
                id=run_id,
                act=act,
                filter=wanted,
                by=who.name,
                role=who.role,
                origin=who.origin,
                reason=None if reason is None else recordable(reason),
                created_at=now,
                total=await self._store.dead_letter_count(wanted),
            )
            # That it has begun; its last step records that it has ended.
            await self._store.start_bulk(run, acting.ended(AuditOutcome.SUCCEEDED, _begun(run)))
            acting.recorded = True
        return run

    async def bulk_run(self, run_id: UUID) -> BulkRun:
        return _there(await self._run(run_id), run_id)

    async def bulk_runs(self, *, running: bool = False, limit: int = 50) -> list[BulkRun]:
        """The newest first; `running`: only those, the oldest first."""
        return await self._store.bulk_runs(running=running, tenant=self.tenant, limit=limit)

    async def stop_bulk(self, run_id: UUID, reason: str | None = None) -> BulkRun:
        """Take no more steps of it; what is done stays done."""
        found = await self._run(run_id)
        async with self._act(
            "dead_letter.bulk_stop",
            ids.public(run_id),
            reason,
            tenant=None if found is None else found.filter.tenant,
            before=None if found is None else {"state": found.state},
            check=lambda: _stoppable(found, run_id),
        ) as act:
            if not await self._store.stop_bulk(run_id):
                _stoppable(await self._run(run_id), run_id)
            run = await self.bulk_run(run_id)
            act.after = {"state": run.state, "done": run.done, "skipped": run.skipped}
        return run

    async def step_bulk(self, run_id: UUID) -> BulkRun:
        """Take it one page further, with or without others who do so too; says how it stands then."""
        self._check_role("to step a bulk run", Role.MANAGER)
        run = await self.bulk_run(run_id)
        after, lines = await bulk.step(self._store, run, self._kinds, producer=self._client.tracer)
        if lines:
            self._client.delivery.hint(lines)
            self._client.delivery.news()
        return _there(after, run_id)

    async def _run(self, run_id: UUID) -> BulkRun | None:
        run = await self._store.bulk_run(run_id)
        return run if run is not None and self._ours(run.filter.tenant) else None

    def _for_act(self, act: ReviewAct, filter: DeadLetterFilter) -> DeadLetterFilter:
        """Of those asked for, the ones that the act is allowed on."""
        allowed = from_states(act)
        asked = set(filter.status) or allowed
        if not asked & allowed:
            raise UsageError(
                f"status {', '.join(sorted(asked))}: none of them may be told to {act}; leave it out, or name one of: "
                f"{', '.join(sorted(allowed))}"
            )
        return self._within(msgspec.structs.replace(filter, status=sorted(asked & allowed)))


def _begun(run: BulkRun) -> dict[str, Any]:
    given = {name: value for name, value in msgspec.to_builtins(run.filter).items() if value}
    return {"act": run.act, "total": run.total, "filter": given}


def _stoppable(run: BulkRun | None, run_id: UUID) -> None:
    if (state := _there(run, run_id).state) is not BulkState.RUNNING:
        raise IllegalTransition(f"bulk run {ids.public(run_id)} is {state}, so it cannot be stopped")


def _there(run: BulkRun | None, run_id: UUID) -> BulkRun:
    if run is None:
        raise BulkRunNotFound(f"there is no bulk run {ids.public(run_id)}; `dutiful bulk list` shows them")
    return run
