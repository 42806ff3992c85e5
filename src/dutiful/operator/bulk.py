"""Bulk runs, which apply one decision to many dead letters: preview, start, step, stop."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.core import ids
from dutiful.core.errors import BulkRunNotFound, IllegalTransition, UsageError
from dutiful.core.principal import Role
from dutiful.core.review.audit import AuditOutcome
from dutiful.core.review.state import ReviewAct, from_states
from dutiful.maintenance import bulk_step
from dutiful.operator.actor import Actor, OperatorPart, recordable
from dutiful.operator.dead_letters import DeadLetters
from dutiful.store.dead_letters import BulkRun, BulkState, DeadLetter, DeadLetterFilter, DeadLetterGroup

SAMPLE = 10
FILTER_LIMIT = 32_768  # bytes as JSON; it is stored with the run and in the audit trail
INSTANT = timedelta(microseconds=1)  # the resolution of databases


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a bulk run would find now: how many, the newest, and the largest groups of errors."""

    act: ReviewAct
    count: int
    sample: list[DeadLetter]
    groups: list[DeadLetterGroup]


class Bulk(OperatorPart):
    def __init__(self, actor: Actor, dead_letters: DeadLetters) -> None:
        super().__init__(actor)
        self._dead_letters = dead_letters

    async def preview(self, act: ReviewAct, filter: DeadLetterFilter) -> Preview:
        wanted = self._for_act(act, filter)
        return Preview(
            act=act,
            count=await self._store.dead_letters.count(wanted),
            sample=await self._store.dead_letters.search(wanted, limit=SAMPLE, details=False),
            groups=await self._store.dead_letters.groups(wanted, SAMPLE),
        )

    async def start(self, act: ReviewAct, filter: DeadLetterFilter, reason: str | None = None) -> BulkRun:
        """Starts a run; workers' services, or callers of `step`, take it to its end."""
        now, who = datetime.now(UTC), self._actor.principal
        run_id = uuid_utils.compat.uuid7()
        async with self._actor.audited(
            "dead_letter.bulk",
            ids.public(run_id),
            reason,
            tenant=filter.tenant,
            before={"act": act},
            act=run_id,
            check=lambda: self._for_act(act, filter),
        ) as action:
            wanted = self._for_act(act, filter)
            # Nothing that dies from now on, including jobs that this run makes. Taken from the newest dead letter,
            # because the clock of the database may differ from ours.
            newest = await self._store.dead_letters.search(wanted, limit=1, details=False)
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
                total=await self._store.dead_letters.count(wanted),
            )
            # Records the start; the last step records the end.
            await self._store.dead_letters.start_bulk(run, action.ended(AuditOutcome.SUCCEEDED, _begun(run)))
            action.recorded = True
        return run

    async def get(self, run_id: UUID) -> BulkRun:
        return _there(await self._run(run_id), run_id)

    async def all(self, *, running: bool = False, limit: int = 50) -> list[BulkRun]:
        """The newest first; `running`: only those, the oldest first."""
        return await self._store.dead_letters.bulk_runs(running=running, tenant=self._actor.tenant, limit=limit)

    async def stop(self, run_id: UUID, reason: str | None = None) -> BulkRun:
        """Ends the run early; what it has done stays done."""
        found = await self._run(run_id)
        async with self._actor.audited(
            "dead_letter.bulk_stop",
            ids.public(run_id),
            reason,
            tenant=None if found is None else found.filter.tenant,
            before=None if found is None else {"state": found.state},
            check=lambda: _stoppable(found, run_id),
        ) as action:
            if not await self._store.dead_letters.stop_bulk(run_id):
                _stoppable(await self._run(run_id), run_id)
            run = await self.get(run_id)
            action.after = {"state": run.state, "done": run.done, "skipped": run.skipped}
        return run

    async def step(self, run_id: UUID) -> BulkRun:
        """Takes the run one page further, also while others do; returns its state."""
        self._actor.check_role("to step a bulk run", Role.MANAGER)
        run = await self.get(run_id)
        after, levels = await bulk_step.step(
            self._store.dead_letters, run, self._actor.kinds, producer=self._client.tracer
        )
        if levels:
            self._client.delivery.hint(levels)
            self._client.delivery.notify_watchers()
        return _there(after, run_id)

    async def _run(self, run_id: UUID) -> BulkRun | None:
        run = await self._store.dead_letters.bulk_run(run_id)
        return run if run is not None and self._actor.owns(run.filter.tenant) else None

    def _for_act(self, act: ReviewAct, filter: DeadLetterFilter) -> DeadLetterFilter:
        """The filter, limited to the states in which the act is allowed."""
        allowed = from_states(act)
        asked = set(filter.status) or allowed
        if not asked & allowed:
            raise UsageError(
                f"status {', '.join(sorted(asked))}: {act} is allowed on none of them; leave it out, or name one of: "
                f"{', '.join(sorted(allowed))}"
            )
        # Stored errors are redacted, so that a redacted text finds as many of them, and the run keeps no secret.
        text = None if filter.text is None else recordable(filter.text)
        wanted = msgspec.structs.replace(filter, status=sorted(asked & allowed), text=text)
        if (size := len(msgspec.json.encode(wanted))) > FILTER_LIMIT:
            raise UsageError(f"the filter has {size:,} bytes, more than {FILTER_LIMIT:,}: name fewer kinds")
        return self._dead_letters.within(wanted)


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
