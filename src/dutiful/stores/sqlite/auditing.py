"""The audit trail: appended, sealed in order, trimmed at its beginning, and never changed.

The file is its owner's: triggers refuse what a program does by mistake, and whoever can write the file can drop them.
That the trail was changed is then told by its seals, unless all of those that follow were made anew as well; only a
hash that was noted elsewhere tells that.
"""

from collections.abc import Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Any

from dutiful.auditing import AuditFilter, Sealed, Stray
from dutiful.core.audit import Anchor, AuditEvent, AuditOutcome, Seal, word
from dutiful.core.principal import Origin, Role
from dutiful.core.readable import read
from dutiful.stores.sqlite.codec import micros, moment, span, to_json, uuid
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL


def append(db: Connection, events: Sequence[AuditEvent]) -> None:
    if events:
        db.many(SQL["insert_audit_event"], [_row(event) for event in events])


def events(db: Connection, wanted: AuditFilter) -> list[AuditEvent]:
    """Newest first: an id begins with the time at which it was made."""
    tests: list[str] = []
    bindings: dict[str, Any] = {"limit": wanted.limit}

    def test(condition: str, **values: Any) -> None:
        tests.append(condition)
        bindings.update(values)

    for column in ("principal", "outcome", "target", "tenant"):
        if (value := getattr(wanted, column)) is not None:
            test(f"{column} = :{column}", **{column: str(value)})
    if wanted.action is not None:
        if wanted.action.endswith("."):
            # Between two texts rather than by LIKE, which knows wildcards and no case: "/" is next to ".". With a plus,
            # so that it walks back from the newest instead of sorting all that have ever begun so.
            test("+action >= :action AND +action < :beyond", action=wanted.action, beyond=f"{wanted.action[:-1]}/")
        else:
            test("action = :action", action=wanted.action)
    if wanted.act is not None:
        test("act = :act", act=wanted.act.bytes)
    if wanted.since is not None:
        test("at >= :since", since=micros(wanted.since))
    if wanted.until is not None:
        test("at < :until", until=micros(wanted.until))
    if wanted.before is not None:
        test("id < :before", before=wanted.before.bytes)
    where = f" WHERE {' AND '.join(tests)}" if tests else ""
    rows = db.rows(f"{SQL['select_audit_events']}{where} ORDER BY id DESC LIMIT :limit", bindings)
    return [_event(row) for row in rows]


def head(db: Connection) -> Seal | Anchor | None:
    row = db.row(SQL["audit_head"])
    return anchor(db) if row is None else _seal(row)


def anchor(db: Connection) -> Anchor | None:
    row = db.row(SQL["audit_anchor"])
    return None if row is None else Anchor(seq=row[0], hash=row[1], at=moment(row[2]))


def unsealed(db: Connection, limit: int) -> list[AuditEvent]:
    return [_event(row) for row in db.rows(SQL["unsealed_events"], (limit,))]


def seal(db: Connection, seals: Sequence[Seal]) -> bool:
    last = head(db)
    if seals and seals[0].seq != (1 if last is None else last.seq + 1):
        return False
    # Somebody may have sealed an event between its being read and the head's.
    if any(db.value(SQL["seal_of_event"], (one.event_id.bytes,)) for one in seals):
        return False
    db.many(SQL["insert_seal"], [(one.seq, one.event_id.bytes, one.hash) for one in seals])
    db.many(SQL["event_is_sealed"], [(one.event_id.bytes,) for one in seals])
    return True


def sealed(db: Connection, after: int, limit: int) -> list[Sealed]:
    return [
        Sealed(_seal(row[:3]), None if row[3] is None else _event(row[3:]))
        for row in db.rows(SQL["sealed_events"], (after, limit))
    ]


def strays(db: Connection, limit: int) -> list[Stray]:
    return [Stray(uuid(event_id), bool(deleted)) for event_id, deleted in db.rows(SQL["audit_strays"], (limit,))]


def kept(db: Connection) -> timedelta | None:
    keep = db.value(SQL["audit_keep"])
    return None if keep is None else timedelta(microseconds=keep)


def keep(db: Connection, length: timedelta | None) -> None:
    db.run(SQL["keep_audit"], (None if length is None else span(length),))


def trim(db: Connection, limit: int, now: int) -> int:
    """Move the anchor, then delete what it covers, for only that may be deleted."""
    length = kept(db)
    if length is None:
        return 0
    cutoff = now - span(length)
    rows = db.rows(SQL["oldest_sealed"], (limit,))
    old = list(takewhile(lambda row: row[3] is not None and row[3] < cutoff, rows))
    if not old:
        return 0
    seq, _, hash_, at = old[-1]
    db.run(SQL["put_anchor"], (seq, hash_, at))
    db.many(SQL["delete_audit_event"], [(event_id,) for _, event_id, _, _ in old])
    db.run(SQL["delete_seals"], (seq,))
    return len(old)


def _row(event: AuditEvent) -> Row:
    return (
        event.id.bytes, event.act.bytes, micros(event.at), event.principal, event.role and event.role.value,
        event.origin.value, event.action, event.outcome.value, event.target, event.tenant, event.reason,
        None if event.before is None else to_json(event.before), None if event.after is None else to_json(event.after),
        event.address,
    )  # fmt: skip


def _event(row: Row) -> AuditEvent:
    (id_, act, at, principal, role, origin, action, outcome, target, tenant, reason, before, after,
     address) = row  # fmt: skip
    return AuditEvent(
        id=uuid(id_),
        act=uuid(act),
        at=moment(at),
        principal=principal,
        role=None if role is None else word(Role, role),
        origin=word(Origin, origin),
        action=action,
        outcome=word(AuditOutcome, outcome),
        target=target,
        tenant=tenant,
        reason=reason,
        before=read(before),
        after=read(after),
        address=address,
    )


def _seal(row: Row) -> Seal:
    return Seal(seq=row[0], event_id=uuid(row[1]), hash=row[2])
