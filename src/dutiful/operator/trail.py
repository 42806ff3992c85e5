"""The audit trail, as a principal reads and verifies it."""

from datetime import datetime
from uuid import UUID

import msgspec

from dutiful.auditing import AuditFilter, Sealed
from dutiful.core.audit import Anchor, AuditEvent, Seal, seal
from dutiful.operator.door import Door

PAGE = 500
MOST_UNSEALED = 1_000


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """Where the chain does not hold, and what was done to it."""

    seq: int
    event_id: UUID | None
    problem: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What a walk over the whole chain found; the head is worth keeping elsewhere, for it vouches for all before."""

    checked: int
    anchor: Anchor | None  # where the chain begins, if retention has deleted what was before
    head: Seal | Anchor | None
    unsealed: int  # events that wait for their seal; MOST_UNSEALED stands for that many or more
    oldest_unsealed_at: datetime | None
    broken: Break | None = None


class Trail(Door):
    async def audit_events(self, filter: AuditFilter) -> list[AuditEvent]:
        return await self._store.audit_events(msgspec.structs.replace(filter, tenant=self._scope(filter.tenant)))

    async def verify_audit(self, expected: Seal | None = None) -> Verified:
        """Compute every seal again, from the anchor to the head; `expected` is a seal that was seen there once."""
        self._check_fleetwide("to verify the trail")
        anchor = await self._store.audit_anchor()
        last: Seal | Anchor | None = anchor
        checked, broken = 0, None
        met = expected is None or (anchor is not None and expected.seq <= anchor.seq)
        while broken is None and (page := await self._store.sealed(0 if last is None else last.seq, PAGE)):
            for link in page:
                if link.seal.seq != _next(last) and (moved := await self._store.audit_anchor()) is not None:
                    # Retention has trimmed what we were about to read.
                    last = moved if moved.seq == link.seal.seq - 1 else last
                broken = _broken(link, last)
                if broken is None and expected is not None and link.seal.seq == expected.seq:
                    met = True
                    if link.seal.hash != expected.hash:
                        broken = Break(
                            seq=expected.seq,
                            event_id=link.seal.event_id,
                            problem="it is not the seal that was expected",
                        )
                if broken is not None:
                    break
                checked, last = checked + 1, link.seal
        if broken is None and expected is not None and not met:
            broken = Break(seq=expected.seq, event_id=None, problem="the chain ends before it: its end was cut off")
        waiting = await self._store.unsealed(MOST_UNSEALED)
        return Verified(
            checked=checked,
            anchor=anchor,
            head=last,
            unsealed=len(waiting),
            oldest_unsealed_at=waiting[0].at if waiting else None,
            broken=broken,
        )


def _next(last: Seal | Anchor | None) -> int:
    return 1 if last is None else last.seq + 1


def _broken(link: Sealed, last: Seal | Anchor | None) -> Break | None:
    event_id, seq = link.seal.event_id, link.seal.seq
    if seq != _next(last):
        return Break(seq=_next(last), event_id=None, problem=f"the seals from here to {seq - 1} are missing")
    if link.event is None:
        return Break(seq=seq, event_id=event_id, problem="its event was deleted")
    if seal(link.event, last) != link.seal:
        return Break(seq=seq, event_id=event_id, problem="its event or its seal was changed")
    return None
