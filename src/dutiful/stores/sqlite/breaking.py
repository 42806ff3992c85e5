"""Circuit breakers as rows: who may call a service, and before which gates the jobs of its kinds wait."""

from collections.abc import Iterable, Mapping
from datetime import timedelta

import msgspec

from dutiful.breaking import BreakerRecord
from dutiful.core import breaker as rules
from dutiful.core.breaker import GATES, Barred, Breaker, BreakerPolicy, BreakerState, Entry, Sign
from dutiful.core.errors import ClaimLost
from dutiful.core.ids import public
from dutiful.core.job import Token
from dutiful.stores.sqlite.codec import MICROSECOND, maybe_micros, maybe_moment, moment, span
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL

_COUNTED = 10_000
"""As many of the jobs that wait are counted, so that a look at a long outage does not take long."""


def find(db: Connection, name: str) -> Breaker | None:
    row = db.row(SQL["breaker"], (name,))
    return None if row is None else read(row)


def look(db: Connection, name: str, policy: BreakerPolicy, token: Token, now: int) -> Entry | Barred | None:
    """The answer to who wants to enter, if nothing has to be written for it."""
    before, after, answer = _decide(db, name, policy, token, now)
    return answer if after == before and not _probes(answer) else None


def enter(db: Connection, name: str, policy: BreakerPolicy, token: Token, now: int) -> Entry | Barred:
    before, after, answer = _decide(db, name, policy, token, now)
    put(db, before, after, now)
    if _probes(answer):
        lease_end = db.value(SQL["lease_end"], (token.job_id.bytes, token.claim_id))
        if lease_end is None or lease_end <= now:
            raise ClaimLost(f"job {public(token.job_id)} is no longer ours: it cannot try the service of {name}")
        db.run(SQL["forfeit_probes"], (name, now))
        db.run(SQL["put_probe"], (name, token.job_id.bytes, after.round, token.claim_id, now))
    return answer


def _decide(
    db: Connection, name: str, policy: BreakerPolicy, token: Token, now: int
) -> tuple[Breaker, Breaker, Entry | Barred]:
    """The breaker as it is, as it is to be, and the answer to a claim that wants to enter."""
    breaker = find(db, name) or Breaker(name=name, policy=policy)
    probing = 0
    if breaker.state is BreakerState.HALF_OPEN:
        # One claim has one place, however often it asks.
        if db.value(SQL["is_probe"], (name, token.job_id.bytes, breaker.round, token.claim_id)):
            return breaker, breaker, Entry(breaker.round, probe=True)
        probing = db.value(SQL["count_probes"], (name, breaker.round, now))
    return breaker, *rules.enter(breaker, policy, probing, moment(now))


def _probes(answer: Entry | Barred) -> bool:
    return isinstance(answer, Entry) and answer.probe


def leave(
    db: Connection, name: str, policy: BreakerPolicy, token: Token, entry: Entry, sign: Sign, now: int
) -> Breaker:
    breaker = find(db, name) or Breaker(name=name, policy=policy)
    probe = (name, token.job_id.bytes, entry.round, token.claim_id)
    if entry.probe and not db.change(SQL["end_probe"], probe):
        return breaker
    return put(db, breaker, rules.leave(breaker, policy, entry, sign, moment(now)), now)


def left(db: Connection, name: str, policy: BreakerPolicy, entry: Entry, sign: Sign, now: int) -> Breaker | None:
    """The breaker, if whoever leaves changes nothing."""
    breaker = find(db, name) or Breaker(name=name, policy=policy)
    unchanged = not entry.probe and rules.leave(breaker, policy, entry, sign, moment(now)) == breaker
    return breaker if unchanged else None


def breaker_of_kind(db: Connection, kind: str) -> str | None:
    name: str | None = db.value(SQL["breaker_of_kind"], (kind,))
    return name


def breaker_kinds(db: Connection) -> dict[str, str]:
    return dict(db.rows(SQL["breaker_kinds"]))


def force(db: Connection, name: str, open_for: timedelta | None, policy: BreakerPolicy | None, now: int) -> Breaker:
    before = find(db, name) or Breaker(name=name)
    breaker = msgspec.structs.replace(before, policy=policy or before.policy)
    return put(db, before, rules.opened(breaker, moment(now), open_for or breaker.policy.open_for), now)


def reset(db: Connection, name: str, now: int) -> Breaker | None:
    breaker = find(db, name)
    return None if breaker is None else put(db, breaker, rules.closed(breaker), now)


def put(db: Connection, before: Breaker, after: Breaker, now: int) -> Breaker:
    """Write what has changed; with a new round, the probes of the old one end and the gates are set."""
    if after != before:
        db.run(SQL["put_breaker"], _row(after, now))
    if after.round != before.round:
        db.run(SQL["end_probes"], (after.name,))
        _set_gates(db, _kinds(db, after.name), after, now)
    return after


class Declared(msgspec.Struct, frozen=True):
    """What code declares: of each kind its breaker, if any, and of breakers their policies."""

    kinds: Mapping[str, str | None]
    policies: Mapping[str, BreakerPolicy]


def news(db: Connection, declared: Declared) -> Declared:
    """What of it is not known yet."""
    names = {*declared.policies, *(name for name in declared.kinds.values() if name is not None)}
    known = {name: one.policy for name in names if (one := find(db, name)) is not None}
    missing = {name: BreakerPolicy() for name in declared.kinds.values() if name is not None and name not in known}
    return Declared(
        {kind: name for kind, name in declared.kinds.items() if breaker_of_kind(db, kind) != name},
        missing | {name: policy for name, policy in declared.policies.items() if known.get(name) != policy},
    )


def declare(db: Connection, declared: Declared, now: int) -> None:
    fresh = news(db, declared)
    for name, policy in fresh.policies.items():
        breaker = find(db, name) or Breaker(name=name)
        db.run(SQL["put_breaker"], _row(msgspec.structs.replace(breaker, policy=policy), now))
    for kind, its in fresh.kinds.items():
        if its is None:
            db.run(SQL["delete_breaker_kind"], (kind,))
            db.run(SQL["delete_gates"], (kind,))
        else:
            db.run(SQL["put_breaker_kind"], (kind, its))
            _set_gates(db, [kind], find(db, its) or Breaker(name=its), now)


def breakers(db: Connection, now: int) -> list[BreakerRecord]:
    """In a few looks, however many there are; only where jobs may wait, these are counted."""
    probing: dict[str, int] = dict(db.rows(SQL["probes_under_way"], (now,)))
    kinds: dict[str, list[str]] = {}
    for kind, name in breaker_kinds(db).items():
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


def _waiting(db: Connection, breaker: Breaker) -> int:
    if breaker.state is BreakerState.CLOSED:
        return 0
    waiting: int = db.value(SQL["count_waiting"], {"breaker": breaker.name, "counted": _COUNTED})
    return waiting


def forget(db: Connection, cutoff: int, limit: int, now: int) -> int:
    """Delete what nobody declares or uses any more; says how many."""
    names = db.rows(SQL["forgotten_breakers"], {"cutoff": cutoff, "limit": limit, "now": now})
    db.many(SQL["end_probes"], names)
    db.many(SQL["delete_breaker"], names)
    return len(names)


def _kinds(db: Connection, name: str) -> list[str]:
    return [kind for (kind,) in db.rows(SQL["kinds_of_breaker"], (name,))]


def _set_gates(db: Connection, kinds: Iterable[str], breaker: Breaker, now: int) -> None:
    gate = GATES.get(breaker.state)
    for kind in kinds:
        db.run(SQL["delete_gates"], (kind,))
        if gate is not None:
            db.run(SQL["pause"], (gate, kind, now, None, f"breaker {breaker.name}"))


def _row(one: Breaker, now: int) -> Row:
    return (
        one.name, one.state.value, one.failures, one.successes, one.neutral, one.round, one.trips, one.policy.failures,
        span(one.policy.open_for), one.policy.probes, maybe_micros(one.last_failure_at), maybe_micros(one.opened_at),
        maybe_micros(one.open_until), maybe_micros(one.half_opened_at), now,
    )  # fmt: skip


def read(row: Row) -> Breaker:
    (name, state, failures, successes, neutral, round_, trips, threshold, open_for, probes, last_failure_at,
     opened_at, open_until, half_opened_at) = row  # fmt: skip
    return Breaker(
        name=name,
        state=BreakerState(state),
        failures=failures,
        successes=successes,
        neutral=neutral,
        round=round_,
        trips=trips,
        policy=BreakerPolicy(failures=threshold, open_for=open_for * MICROSECOND, probes=probes),
        last_failure_at=maybe_moment(last_failure_at),
        opened_at=maybe_moment(opened_at),
        open_until=maybe_moment(open_until),
        half_opened_at=maybe_moment(half_opened_at),
    )
