"""Circuit breakers in SQLite: their states, their probes, and the kinds that declare them."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from dutiful.core.breaker import state as rules
from dutiful.core.breaker.state import PAUSE_SCOPES, Breaker, BreakerPolicy, BreakerState, CallResult, Entry, Rejected
from dutiful.core.errors import ClaimLost
from dutiful.core.ids import public
from dutiful.core.job import ClaimToken
from dutiful.store.breakers import BreakerRecord
from dutiful.stores.sqlite.engine import SQL, Connection, Row, Subject, browses, writes
from dutiful.stores.sqlite.engine.codec import MICROSECOND, clock, moment, span
from dutiful.stores.sqlite.engine.columns import BREAKER

_COUNTED = 10_000
"""Waiting jobs are counted up to this number, so that listing breakers stays fast in a long outage."""


class SqliteBreakers(Subject):
    # A call that changes nothing only reads, and nearly all calls do.

    async def enter(
        self, name: str, policy: BreakerPolicy, token: ClaimToken, *, now: datetime | None = None
    ) -> Entry | Rejected:
        seen = await self._engine.read(lambda db: _entered(db, name, policy, token, clock(now)))
        if seen is not None:
            return seen
        return await self._engine.write(lambda db: _enter(db, name, policy, token, clock(now)))

    async def exit(
        self, name: str, policy: BreakerPolicy, token: ClaimToken, entry: Entry, result: CallResult, *,
        now: datetime | None = None,
    ) -> Breaker:  # fmt: skip
        seen = await self._engine.read(lambda db: _exited(db, name, policy, entry, result, clock(now)))
        if seen is not None:
            return seen
        return await self._engine.write(lambda db: _exit(db, name, policy, token, entry, result, clock(now)))

    @browses
    def all(self, db: Connection, *, now: datetime | None = None) -> list[BreakerRecord]:
        """All breakers in a few statements; waiting jobs are counted only where there may be some."""
        probing: dict[str, int] = dict(db.rows(SQL["probes_under_way"], (clock(now),)))
        kinds: dict[str, list[str]] = {}
        for kind, name in db.rows(SQL["breaker_kinds"]):
            kinds.setdefault(name, []).append(kind)
        return [
            BreakerRecord(
                breaker=one,
                probing=probing.get(one.name, 0),
                kinds=kinds.get(one.name, []),
                waiting=_waiting(db, one),
            )
            for one in map(read, db.rows(SQL["breakers"]))
        ]

    async def kinds(self) -> dict[str, str]:
        return await self._engine.read(lambda db: dict(db.rows(SQL["breaker_kinds"])))

    @writes
    def open(
        self, db: Connection, name: str, open_for: timedelta | None, policy: BreakerPolicy | None = None, *,
        now: datetime | None = None,
    ) -> Breaker:  # fmt: skip
        at, before = clock(now), find(db, name) or Breaker(name=name)
        breaker = msgspec.structs.replace(before, policy=policy or before.policy)
        return put(db, before, rules.opened(breaker, moment(at), open_for or breaker.policy.open_for), at)

    @writes
    def reset(self, db: Connection, name: str, *, now: datetime | None = None) -> Breaker | None:
        breaker = find(db, name)
        return None if breaker is None else put(db, breaker, rules.closed(breaker), clock(now))

    async def put_kinds(
        self, kinds: Mapping[str, str | None], policies: Mapping[str, BreakerPolicy] | None = None, *,
        now: datetime | None = None,
    ) -> None:  # fmt: skip
        declared = _Declared(kinds, policies or {})
        news = await self._engine.read(lambda db: _news(db, declared))
        if news.kinds or news.policies:
            await self._engine.write(lambda db: _declare(db, declared, clock(now)))


def find(db: Connection, name: str) -> Breaker | None:
    row = db.row(SQL["breaker"], (name,))
    return None if row is None else read(row)


def _entered(db: Connection, name: str, policy: BreakerPolicy, token: ClaimToken, now: int) -> Entry | Rejected | None:
    """The result of `_enter`, if nothing has to be written."""
    before, after, answer = _decide(db, name, policy, token, now)
    return answer if after == before and not _probes(answer) else None


def _enter(db: Connection, name: str, policy: BreakerPolicy, token: ClaimToken, now: int) -> Entry | Rejected:
    before, after, answer = _decide(db, name, policy, token, now)
    put(db, before, after, now)
    if _probes(answer):
        lease_end = db.value(SQL["lease_end"], (token.job_id.bytes, token.claim_id))
        if lease_end is None or lease_end <= now:
            raise ClaimLost(f"the claim of job {public(token.job_id)} is lost: it cannot try the service of {name}")
        db.run(SQL["forfeit_probes"], (name, now))
        db.run(SQL["put_probe"], (name, token.job_id.bytes, after.round, token.claim_id, now))
    return answer


def _decide(
    db: Connection, name: str, policy: BreakerPolicy, token: ClaimToken, now: int
) -> tuple[Breaker, Breaker, Entry | Rejected]:
    """The breaker before and after the call enters, and the result for the claim."""
    breaker = find(db, name) or Breaker(name=name, policy=policy)
    probing = 0
    if breaker.state is BreakerState.HALF_OPEN:
        # One claim is one probe, however often it asks.
        if db.value(SQL["is_probe"], (name, token.job_id.bytes, breaker.round, token.claim_id)):
            return breaker, breaker, Entry(breaker.round, probe=True)
        probing = db.value(SQL["count_probes"], (name, breaker.round, now))
    return breaker, *rules.enter(breaker, policy, probing, moment(now))


def _probes(answer: Entry | Rejected) -> bool:
    return isinstance(answer, Entry) and answer.probe


def _exit(
    db: Connection, name: str, policy: BreakerPolicy, token: ClaimToken, entry: Entry, result: CallResult, now: int
) -> Breaker:
    breaker = find(db, name) or Breaker(name=name, policy=policy)
    probe = (name, token.job_id.bytes, entry.round, token.claim_id)
    if entry.probe and not db.change(SQL["end_probe"], probe):
        return breaker
    return put(db, breaker, rules.exited(breaker, policy, entry, result, moment(now)), now)


def _exited(
    db: Connection, name: str, policy: BreakerPolicy, entry: Entry, result: CallResult, now: int
) -> Breaker | None:
    """The breaker, if the exit changes nothing."""
    breaker = find(db, name) or Breaker(name=name, policy=policy)
    unchanged = not entry.probe and rules.exited(breaker, policy, entry, result, moment(now)) == breaker
    return breaker if unchanged else None


def put(db: Connection, before: Breaker, after: Breaker, now: int) -> Breaker:
    """Writes a changed breaker; a new round ends the probes of the old one and sets the gates."""
    if after != before:
        db.run(SQL["put_breaker"], _row(after, now))
    if after.round != before.round:
        db.run(SQL["end_probes"], (after.name,))
        _set_gates(db, kinds_of(db, after.name), after, now)
    return after


class _Declared(msgspec.Struct, frozen=True):
    """What the code declares: the breaker of each kind, if any, and the policies of breakers."""

    kinds: Mapping[str, str | None]
    policies: Mapping[str, BreakerPolicy]


def _news(db: Connection, declared: _Declared) -> _Declared:
    """The declarations that differ from the stored ones."""
    names = {*declared.policies, *(name for name in declared.kinds.values() if name is not None)}
    known = {name: one.policy for name in names if (one := find(db, name)) is not None}
    declaring: dict[str, str] = dict(db.rows(SQL["breaker_kinds"]))
    missing = {name: BreakerPolicy() for name in declared.kinds.values() if name is not None and name not in known}
    return _Declared(
        {kind: name for kind, name in declared.kinds.items() if declaring.get(kind) != name},
        missing | {name: policy for name, policy in declared.policies.items() if known.get(name) != policy},
    )


def _declare(db: Connection, declared: _Declared, now: int) -> None:
    fresh = _news(db, declared)
    for name, policy in fresh.policies.items():
        breaker = find(db, name) or Breaker(name=name)
        db.run(SQL["put_breaker"], _row(msgspec.structs.replace(breaker, policy=policy), now))
    for kind, declares in fresh.kinds.items():
        if declares is None:
            db.run(SQL["delete_breaker_kind"], (kind,))
            db.run(SQL["delete_gates"], (kind,))
        else:
            db.run(SQL["put_breaker_kind"], (kind, declares))
            _set_gates(db, [kind], find(db, declares) or Breaker(name=declares), now)


def _waiting(db: Connection, breaker: Breaker) -> int:
    if breaker.state is BreakerState.CLOSED:
        return 0
    waiting: int = db.value(SQL["count_waiting"], {"breaker": breaker.name, "counted": _COUNTED})
    return waiting


def delete_unused(db: Connection, cutoff: int, limit: int, now: int) -> int:
    """Deletes breakers that no kind declares and no job uses any more; returns how many."""
    names = db.rows(SQL["unused_breakers"], {"cutoff": cutoff, "limit": limit, "now": now})
    db.many(SQL["end_probes"], names)
    db.many(SQL["delete_breaker"], names)
    return len(names)


def kinds_of(db: Connection, name: str) -> list[str]:
    return [kind for (kind,) in db.rows(SQL["kinds_of_breaker"], (name,))]


def _set_gates(db: Connection, kinds: Iterable[str], breaker: Breaker, now: int) -> None:
    gate = PAUSE_SCOPES.get(breaker.state)
    for kind in kinds:
        db.run(SQL["delete_gates"], (kind,))
        if gate is not None:
            db.run(SQL["pause"], (gate, kind, None, f"breaker {breaker.name}", now))


def _row(one: Breaker, now: int) -> Row:
    return *BREAKER.encode(one), one.policy.failures, span(one.policy.open_for), one.policy.probes, now


def read(row: Row) -> Breaker:
    *_, failures, open_for, probes = row
    policy = BreakerPolicy(failures=failures, open_for=open_for * MICROSECOND, probes=probes)
    return BREAKER.decode(row, policy=policy)
