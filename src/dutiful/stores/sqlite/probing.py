"""Lets jobs of kinds whose breaker is half-open out of their gate, as many as may find out."""

from collections.abc import Iterable

import msgspec

from dutiful.core import breaker as rules
from dutiful.core.breaker import Breaker, BreakerState
from dutiful.stores.sqlite import breaking, places
from dutiful.stores.sqlite.codec import moment
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL


class Turn(msgspec.Struct, frozen=True):
    """A breaker whose time is over, or that lacks probes; and the jobs that could be some, the oldest first."""

    breaker: str
    jobs: list[bytes]


def any_due(db: Connection, now: int) -> bool:
    return db.value(SQL["any_breaker_due"], (now,)) is not None


def look(db: Connection, limit: int, now: int) -> list[Turn]:
    """Find what is to be moved; only a look, so that however many jobs wait, no writer waits for it."""
    turns = []
    for breaker in map(breaking.read, db.rows(SQL["gated_breakers"])):
        due = rules.due(breaker, moment(now))
        if due or breaker.state is BreakerState.HALF_OPEN:
            jobs = _candidates(db, breaker.name, min(_room(db, breaker, now), limit), now)
            if due or jobs:
                turns.append(Turn(breaker.name, jobs))
    return turns


def let_out(db: Connection, turns: Iterable[Turn], placing: places.Placing, now: int) -> int:
    """Move what was found, if it still is as it was seen; returns how many. `placing` knows of none of their gates."""
    moved = 0
    for turn in turns:
        breaker = breaking.find(db, turn.breaker)
        if breaker is not None and rules.due(breaker, moment(now)):
            breaker = breaking.put(db, breaker, rules.half_opened(breaker, moment(now)), now)
        if breaker is None or breaker.state is not BreakerState.HALF_OPEN:
            continue
        db.run(SQL["forget_probes"], (breaker.name,))
        for job_id in turn.jobs[: _room(db, breaker, now)]:
            row = db.row(SQL["blocked_row"], (job_id,))
            if row is None or row[0] != places.PAUSED:
                continue
            _, _, *line, attempt, crashes, _ = row
            db.run(SQL["leave_blocked"], (job_id,))
            db.run(SQL["put_probe"], (breaker.name, job_id, breaker.round, None))
            placing.add(job_id, tuple(line), attempt, crashes, None)
            moved += 1
    return moved


def _room(db: Connection, breaker: Breaker, now: int) -> int:
    if breaker.state is BreakerState.OPEN:
        return breaker.policy.probes
    probing, lined_up = db.rows(SQL["probes_under_way"], {"breaker": breaker.name, "now": now})[0]
    return rules.room(breaker, probing, lined_up, moment(now))


def _candidates(db: Connection, name: str, limit: int, now: int) -> list[bytes]:
    found = [
        (since, job_id)
        for (kind,) in db.rows(SQL["kinds_of_breaker"], (name,))
        for since, job_id in db.rows(SQL["may_probe"], {"kind": kind, "now": now, "limit": limit})
    ]
    return [job_id for _, job_id in sorted(found)[:limit]]
