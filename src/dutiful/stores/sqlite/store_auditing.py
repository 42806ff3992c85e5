"""The store's face to those who keep the audit trail, and check it."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from dutiful.auditing import AuditFilter, Sealed, Stray
from dutiful.core.audit import Anchor, AuditEvent, Seal
from dutiful.stores.sqlite import auditing
from dutiful.stores.sqlite.threads import Threaded


class SqliteAuditing(Threaded):
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
