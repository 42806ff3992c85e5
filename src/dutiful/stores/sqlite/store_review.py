"""The store's face to those who review dead letters, keep the audit trail, and hand out tokens."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.access import ApiToken
from dutiful.auditing import AuditFilter, Sealed, Stray
from dutiful.core.audit import Anchor, AuditEvent, Seal
from dutiful.reviewing import (
    BulkRun,
    BulkStep,
    DeadLetter,
    DeadLetterCounts,
    DeadLetterFilter,
    DeadLetterGroup,
    Place,
    Review,
    Reviewed,
)
from dutiful.stores.sqlite import access, auditing, bulk, reviewing
from dutiful.stores.sqlite.threads import Threaded


class SqliteReview(Threaded):
    _resolved_to = b""

    # Dead letters

    async def dead_letter(self, job_id: UUID) -> DeadLetter | None:
        return await self._read(lambda db: reviewing.dead_letter(db, job_id))

    async def dead_letters(
        self, filter: DeadLetterFilter, *, after: Place | None = None, limit: int = 50
    ) -> list[DeadLetter]:
        return await self._browse(lambda db: reviewing.dead_letters(db, filter, after, limit))

    async def dead_letter_count(self, filter: DeadLetterFilter) -> int:
        return await self._browse(lambda db: reviewing.count(db, filter))

    async def dead_letter_counts(self, filter: DeadLetterFilter) -> DeadLetterCounts:
        return await self._browse(lambda db: reviewing.counts(db, filter))

    async def dead_letter_groups(self, filter: DeadLetterFilter, limit: int = 50) -> list[DeadLetterGroup]:
        return await self._browse(lambda db: reviewing.groups(db, filter, limit))

    async def review(
        self, reviews: Sequence[Review], *, step: BulkStep | None = None, now: datetime | None = None
    ) -> list[Reviewed]:
        return await self._write(lambda db: reviewing.review(db, reviews, step, self._clock(now)))

    async def resolve_reprocessed(
        self, limit: int, *, new_job_id: UUID | None = None, now: datetime | None = None
    ) -> int:
        if new_job_id is not None:
            ended = await self._read(lambda db: reviewing.ended_as(db, new_job_id))
            return await self._write(lambda db: reviewing.resolve(db, ended, self._clock(now))) if ended else 0
        # Looked for by a reader and in stretches, since most of what is reprocessing may have to wait for long.
        rows, self._resolved_to = await self._read(lambda db: reviewing.ended(db, self._resolved_to, limit))
        return await self._write(lambda db: reviewing.resolve(db, rows, self._clock(now))) if rows else 0

    # Runs over many of them

    async def start_bulk(self, run: BulkRun, event: AuditEvent) -> None:
        await self._write(lambda db: bulk.start(db, run, event))

    async def bulk_run(self, run_id: UUID) -> BulkRun | None:
        return await self._read(lambda db: bulk.find(db, run_id))

    async def bulk_runs(self, *, running: bool = False, tenant: str | None = None, limit: int = 50) -> list[BulkRun]:
        return await self._read(lambda db: bulk.runs(db, running, tenant, limit))

    async def stop_bulk(self, run_id: UUID, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: bulk.stop(db, run_id, self._clock(now)))

    # The audit trail

    async def append_audit(self, events: Sequence[AuditEvent]) -> None:
        await self._write(lambda db: auditing.append(db, events))

    async def audit_events(self, filter: AuditFilter) -> list[AuditEvent]:
        return await self._browse(lambda db: auditing.events(db, filter))

    async def audit_head(self) -> Seal | Anchor | None:
        return await self._read(auditing.head)

    async def audit_anchor(self) -> Anchor | None:
        return await self._read(auditing.anchor)

    async def unsealed(self, limit: int) -> list[AuditEvent]:
        return await self._browse(lambda db: auditing.unsealed(db, limit))

    async def seal_audit(self, seals: Sequence[Seal]) -> bool:
        return await self._write(lambda db: auditing.seal(db, seals))

    async def sealed(self, after: int, limit: int) -> list[Sealed]:
        return await self._browse(lambda db: auditing.sealed(db, after, limit))

    async def audit_strays(self, limit: int) -> list[Stray]:
        return await self._browse(lambda db: auditing.strays(db, limit))

    async def trim_audit(self, limit: int, *, now: datetime | None = None) -> int:
        if await self.audit_keep() is None:
            return 0
        return await self._write(lambda db: auditing.trim(db, limit, self._clock(now)))

    async def audit_keep(self) -> timedelta | None:
        return await self._read(auditing.kept)

    async def keep_audit(self, span: timedelta | None) -> None:
        await self._write(lambda db: auditing.keep(db, span))

    # Access

    async def put_token(self, token: ApiToken, hash: str) -> None:
        await self._write(lambda db: access.put(db, token, hash))

    async def token_of(self, hash: str) -> ApiToken | None:
        return await self._read(lambda db: access.token_of(db, hash))

    async def tokens(self) -> list[ApiToken]:
        return await self._read(access.tokens)

    async def revoke_token(self, token_id: UUID, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: access.revoke(db, token_id, self._clock(now)))

    async def touch_tokens(self, token_ids: Sequence[UUID], *, now: datetime | None = None) -> None:
        if token_ids:
            await self._write(lambda db: access.touch(db, token_ids, self._clock(now)))
