"""The audit trail: appended, sealed in order, trimmed at its beginning, and never changed.

Triggers prevent changes by mistake, but a process that can write the file can drop them. The seals reveal such a
change, unless all later seals were recomputed as well; only a hash that was noted elsewhere reveals that.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile

from dutiful.core.review.audit import SHORTEST_KEEP, Anchor, AuditEvent, Seal
from dutiful.store.audit import AuditFilter, Sealed, Stray
from dutiful.stores.sqlite.engine import SQL, Connection, Row, Subject, browses, writes
from dutiful.stores.sqlite.engine.codec import clock, maybe_bytes, maybe_micros, moment, uuid
from dutiful.stores.sqlite.engine.codec import span as micros_of
from dutiful.stores.sqlite.engine.columns import AUDIT_EVENT
from dutiful.stores.sqlite.engine.driver import ReplacedRow
from dutiful.stores.sqlite.engine.sql import Conditions


class SqliteAudit(Subject):
    async def append(self, events: Sequence[AuditEvent]) -> None:
        await self._engine.write(lambda db: append(db, events))

    @browses
    def search(self, db: Connection, filter: AuditFilter) -> list[AuditEvent]:
        """Newest first, because an id begins with the time at which it was made."""
        wanted = Conditions(limit=filter.limit, action=filter.action)
        wanted.equal(filter, "principal", "outcome", "target", "tenant")
        if filter.action is not None and filter.action.endswith("."):
            # Between two texts rather than by LIKE, which knows wildcards and no case: "/" comes next to ".". The plus
            # makes SQLite walk back from the newest instead of sorting all that begin so.
            wanted.add("+action >= :action AND +action < :beyond", beyond=f"{filter.action[:-1]}/")
        else:
            wanted.add("action = :action", action=filter.action)
        wanted.add("act = :act", act=maybe_bytes(filter.act))
        wanted.add("at >= :since", since=maybe_micros(filter.since))
        wanted.add("at < :until", until=maybe_micros(filter.until))
        wanted.add("id < :before", before=maybe_bytes(filter.before))
        rows = db.rows(f"{SQL['select_audit_events']} {wanted.where} ORDER BY id DESC LIMIT :limit", wanted.bindings)
        return [AUDIT_EVENT.decode(row) for row in rows]

    async def head(self) -> Seal | Anchor | None:
        return await self._engine.read(_head)

    async def anchor(self) -> Anchor | None:
        return await self._engine.read(_anchor)

    @browses
    def unsealed(self, db: Connection, limit: int) -> list[AuditEvent]:
        return [AUDIT_EVENT.decode(row) for row in db.rows(SQL["unsealed_events"], (limit,))]

    @writes
    def seal(self, db: Connection, seals: Sequence[Seal]) -> bool:
        last = _head(db)
        if seals and seals[0].seq != (1 if last is None else last.seq + 1):
            return False
        # Another process may have sealed an event after it was read and before the head was.
        if any(db.value(SQL["seal_of_event"], (one.event_id.bytes,)) for one in seals):
            return False
        db.many(SQL["insert_seal"], [(one.seq, one.event_id.bytes, one.hash) for one in seals])
        db.many(SQL["event_is_sealed"], [(one.event_id.bytes,) for one in seals])
        return True

    @browses
    def sealed(self, db: Connection, after: int, limit: int) -> list[Sealed]:
        rows = db.rows(SQL["sealed_events"], (after, limit))
        return [_sealed(row) for row in rows]

    @browses
    def strays(self, db: Connection, limit: int) -> list[Stray]:
        rows = db.rows(SQL["audit_strays"], (limit,))
        return [Stray(uuid(event_id), bool(deleted)) for event_id, deleted in rows]

    async def trim(self, limit: int, *, now: datetime | None = None) -> int:
        if await self.retention() is None:
            return 0
        return await self._engine.write(lambda db: _trim(db, limit, clock(now)))

    async def retention(self) -> timedelta | None:
        return await self._engine.read(_retention)

    @writes
    def set_retention(self, db: Connection, span: timedelta | None, event: AuditEvent | None = None) -> None:
        db.run(SQL["set_audit_retention"], (None if span is None else micros_of(span),))
        append(db, [] if event is None else [event])


def append(db: Connection, events: Sequence[AuditEvent]) -> None:
    if events:
        db.many(SQL["insert_audit_event"], map(AUDIT_EVENT.encode, events))


def _head(db: Connection) -> Seal | Anchor | None:
    row = db.row(SQL["audit_head"])
    return _anchor(db) if row is None else _seal(row)


def _anchor(db: Connection) -> Anchor | None:
    row = db.row(SQL["audit_anchor"])
    if row is None:
        return None
    seq, hash_, at, keep, trimmed_at = row
    keep = timedelta(microseconds=keep)
    return Anchor(seq=seq, hash=hash_, at=moment(at), keep=keep, trimmed_at=moment(trimmed_at))


def _retention(db: Connection) -> timedelta | None:
    keep = db.value(SQL["audit_retention"])
    return None if keep is None else timedelta(microseconds=keep)


def _trim(db: Connection, limit: int, now: int) -> int:
    """Moves the anchor, then deletes what it covers, because only that may be deleted."""
    length = _retention(db)
    if length is None or length < SHORTEST_KEEP:
        return 0
    now = min(now, clock(None))  # a clock of a test may be late, but makes no event older than it is
    keep = micros_of(length)
    cutoff = now - keep
    rows = db.rows(SQL["oldest_sealed"], (limit,))
    old = list(takewhile(lambda row: row[3] is not None and row[3] < cutoff, rows))
    if not old:
        return 0
    seq, _, hash_, at = old[-1]
    db.run(SQL["put_anchor"], {"seq": seq, "hash": hash_, "at": at, "keep": keep, "trimmed_at": now})
    db.many(SQL["delete_audit_event"], [(event_id,) for _, event_id, _, _ in old])
    db.run(SQL["delete_seals"], (seq,))
    return len(old)


def _sealed(row: Row) -> Sealed:
    event = None if row[3] is None else AUDIT_EVENT.decode(row[3:])
    return Sealed(_seal(row[:3]), event, not isinstance(row, ReplacedRow))


def _seal(row: Row) -> Seal:
    return Seal(seq=row[0], event_id=uuid(row[1]), hash=row[2])
