"""Lets jobs of kinds whose breaker is half-open out of their gate, as many as may find out."""

from collections.abc import Iterable, Iterator
from datetime import timedelta

import msgspec

from dutiful.core import breaker as rules
from dutiful.core.breaker import Breaker, BreakerState
from dutiful.core.serving import Place, Serving, Standing, Turns, by_turns, serving
from dutiful.stores.sqlite import breaking, looking, places
from dutiful.stores.sqlite.codec import moment, span
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL


class Turn(msgspec.Struct, frozen=True):
    """A breaker whose time is over, that lacks probes, or of whose probes some stand in a line that nobody serves."""

    breaker: str
    jobs: list[tuple[Standing, bytes]]  # that could be probes, by turns
    stranded: list[bytes]


class _Probes(msgspec.Struct, frozen=True):
    """How many run, how many are in line and it is their turn, and those in line that nobody would take."""

    running: int = 0
    lined_up: int = 0
    stranded: list[bytes] = []


def any_due(db: Connection, now: int) -> bool:
    return db.value(SQL["any_breaker_due"], (now,)) is not None


def look(db: Connection, limit: int, turns: Turns, now: int) -> list[Turn]:
    """Find what is to be moved; only a look, so that however many jobs wait, no writer waits for it."""
    at = moment(now)
    found = []
    served: Serving | None = None
    for breaker in map(breaking.read, db.rows(SQL["gated_breakers"])):
        due = rules.due(breaker, at)
        if not due and breaker.state is not BreakerState.HALF_OPEN:
            continue
        served = served or who_serves(db, now)
        probes = _Probes() if due else _probes(db, breaker, served, now)
        room = min(rules.room(breaker, probes.running, probes.lined_up), limit)
        jobs = _candidates(db, breaker.name, room, served, turns)
        if due or jobs or probes.stranded:
            found.append(Turn(breaker.name, jobs, probes.stranded))
    return found


def let_out(db: Connection, found: Iterable[Turn], placing: places.Placing, shutting: places.Placing, now: int) -> int:
    """Move what was found, if it still is as it was seen; returns how many. `placing` knows of none of their gates."""
    moved = 0
    for turn in found:
        breaker = breaking.find(db, turn.breaker)
        if breaker is not None and rules.due(breaker, moment(now)):
            breaker = breaking.put(db, breaker, rules.half_opened(breaker, moment(now)), now)
        if breaker is None or breaker.state is not BreakerState.HALF_OPEN:
            continue
        moved += sum(_put_back(db, job_id, shutting) for job_id in turn.stranded)
        db.run(SQL["forget_probes"], (breaker.name,))
        probes = _probes(db, breaker, Serving(None), now)
        for _, job_id in turn.jobs[: rules.room(breaker, probes.running, probes.lined_up)]:
            row = db.row(SQL["blocked_row"], (job_id,))
            if row is None or row[0] != places.PAUSED:
                continue
            _, _, *line, attempt, crashes, _, seq = row
            db.run(SQL["leave_blocked"], (job_id,))
            db.run(SQL["put_probe"], (breaker.name, job_id, breaker.round, None, now))
            placing.add(job_id, tuple(line), attempt, crashes, None, seq)
            moved += 1
    return moved


def _put_back(db: Connection, job_id: bytes, shutting: places.Placing) -> bool:
    row = db.row(SQL["ready_row"], (job_id,))
    if row is None:
        return False
    *line, attempt, crashes, seq = row
    db.run(SQL["leave_ready"], (job_id,))
    shutting.add(job_id, tuple(line), attempt, crashes, None, seq)
    return True


def who_serves(db: Connection, now: int) -> Serving:
    alive = ((worker.lanes, worker.kinds) for worker in looking.workers(db, now) if worker.alive)
    return serving(alive, {(scope, name) for scope, name, *_ in db.rows(SQL["pauses"])})


def _probes(db: Connection, breaker: Breaker, served: Serving, now: int) -> _Probes:
    running, lined_up, stranded = 0, 0, []
    turn: timedelta = rules.turn(breaker.policy)
    for job_id, since, runs, kind, queue, tenant in db.rows(
        SQL["probes_of_breaker"], {"breaker": breaker.name, "now": now}
    ):
        if kind is None:
            running += runs
        elif not served.takes(kind, queue, tenant):
            stranded.append(job_id)
        else:
            lined_up += since + span(turn) > now
    return _Probes(running, lined_up, stranded)


def _candidates(db: Connection, name: str, limit: int, served: Serving, turns: Turns) -> list[tuple[Standing, bytes]]:
    if limit <= 0:
        return []
    kinds = [kind for (kind,) in db.rows(SQL["kinds_of_breaker"], (name,))]
    waiting = [line for kind in kinds for line in _waiting_lines(db, kind)]
    lines: list[list[tuple[Standing, bytes]]] = []
    for who, whose in served.first(turns.order(waiting), limit):
        if jobs := _may_probe(db, who, whose, limit):
            lines.append([(who, job_id) for job_id in jobs])
        if len(lines) == limit:
            break
    return by_turns(lines, limit)


def _waiting_lines(db: Connection, kind: str) -> Iterator[tuple[Standing, Place]]:
    """In which queues jobs of the kind wait that are due, with the place of the first; from one queue to the next."""
    beyond = ""
    while (found := db.row(SQL["first_waiting_line"], {"kind": kind, "beyond": beyond})) is not None:
        beyond, *place = found
        yield Standing(kind, beyond), (place[0], place[1])


def _may_probe(db: Connection, who: Standing, whose: frozenset[str] | None, limit: int) -> list[bytes]:
    """The first of one line; of each tenant by an index of its own."""
    wanted = {"kind": who.kind, "queue": who.queue, "limit": limit}
    if whose is None:
        found = db.rows(SQL["may_probe"], wanted)
    else:
        found = [row for tenant in whose for row in db.rows(SQL["may_probe_of_tenant"], {**wanted, "tenant": tenant})]
    return [job_id for *_, job_id in sorted(found)[:limit]]
