"""The audit trail, as a principal reads and verifies it."""

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.auditing import AuditFilter, Sealed
from dutiful.core.audit import Anchor, AuditEvent, Seal, seal
from dutiful.core.duration import LONGEST, brief
from dutiful.core.errors import UsageError
from dutiful.core.principal import Role
from dutiful.operator.door import Door

PAGE = 500
MOST_UNSEALED = 1_000
SHORTEST = timedelta(days=1)


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """Where the chain does not hold, and what was done to it; without a `seq`, to what is not in it."""

    seq: int | None
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
    keep: timedelta | None = None  # how long events are kept; None: for good
    gone: bool = False  # the expected seal is before the anchor: nobody can tell any more if it was there


class Trail(Door):
    async def audit_events(self, filter: AuditFilter) -> list[AuditEvent]:
        return await self._store.audit_events(msgspec.structs.replace(filter, tenant=self.scope(filter.tenant)))

    async def verify_audit(self, expected: Seal | None = None) -> Verified:
        """Compute every seal again, from the anchor to the head; `expected` is a seal that was seen there once."""
        self._check_fleetwide("to verify the trail")
        anchor = await self._store.audit_anchor()
        last: Seal | Anchor | None = anchor
        checked, broken, met = 0, None, expected is None
        while broken is None and (page := await self._store.sealed(0 if last is None else last.seq, PAGE)):
            for link in page:
                if link.seal.seq != _next(last) and (moved := await self._store.audit_anchor()) is not None:
                    # Retention has trimmed what we were about to read.
                    last = moved if moved.seq == link.seal.seq - 1 else last
                broken = _broken(link, last)
                if broken is None and expected is not None and link.seal.seq == expected.seq:
                    met, broken = True, _unexpected(link.seal, expected)
                if broken is not None:
                    break
                checked, last = checked + 1, link.seal
        gone = False
        if broken is None and expected is not None and not met:
            broken, gone = await self._missed(expected)
        if broken is None:
            broken = await self._stray()
        waiting = await self._store.unsealed(MOST_UNSEALED)
        return Verified(
            checked=checked,
            anchor=anchor,
            head=last,
            unsealed=len(waiting),
            oldest_unsealed_at=waiting[0].at if waiting else None,
            broken=broken,
            keep=await self._store.audit_keep(),
            gone=gone,
        )

    async def keep_audit(self, span: timedelta | None, reason: str | None = None) -> None:
        """Keep events that long from now on, None: for good; what is older is deleted by a worker's services."""

        def possible() -> None:
            if span is not None and not SHORTEST <= span <= LONGEST:
                raise UsageError(f"keep {brief(span)} is not from {brief(SHORTEST)} to {brief(LONGEST)}, nor forever")

        before = _told(await self._store.audit_keep())
        async with self._act(
            "audit.keep", None, reason, role=Role.ADMIN, before=before, fleetwide=True, check=possible
        ) as act:
            await self._store.keep_audit(span)
            act.after = _told(span)

    async def _missed(self, expected: Seal) -> tuple[Break | None, bool]:
        """What to say of one that the walk did not come by, and whether nothing can be said of it."""
        anchor = await self._store.audit_anchor()
        if anchor is None or anchor.seq < expected.seq:
            problem = "the chain ends before it: its end was cut off"
            return Break(seq=expected.seq, event_id=None, problem=problem), False
        return (_unexpected(anchor, expected), False) if anchor.seq == expected.seq else (None, True)

    async def _stray(self) -> Break | None:
        for stray in await self._store.audit_strays(1):
            problem = (
                "it waited for its seal, and was deleted"
                if stray.deleted
                else "it was slipped in: it has no seal, and does not wait for one"
            )
            return Break(seq=None, event_id=stray.event_id, problem=problem)
        return None


def _told(keep: timedelta | None) -> dict[str, str | None]:
    return {"keep": None if keep is None else brief(keep)}


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


def _unexpected(found: Seal | Anchor, expected: Seal) -> Break | None:
    if found.hash == expected.hash:
        return None
    event_id = found.event_id if isinstance(found, Seal) else None
    return Break(seq=found.seq, event_id=event_id, problem="it is not the seal that was expected")
