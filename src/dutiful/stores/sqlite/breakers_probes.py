"""Admits jobs that wait for a breaker: as many as may probe while it is half-open, all once it is closed."""

from collections.abc import Iterable, Iterator
from datetime import timedelta

import msgspec

from dutiful.core.breaker import state as rules
from dutiful.core.breaker.probes import (
    CANDIDATES,
    KindInQueue,
    QueuePosition,
    RejectedJob,
    Serving,
    Turns,
    choose_rejected,
    room_for_rejected,
    round_robin,
    serving,
)
from dutiful.core.breaker.state import Breaker, BreakerState
from dutiful.stores.sqlite import breakers, limits, placement
from dutiful.stores.sqlite.engine import SQL, Connection
from dutiful.stores.sqlite.engine.codec import moment, span
from dutiful.stores.sqlite.engine.columns import Carried
from dutiful.stores.sqlite.engine.driver import stored
from dutiful.stores.sqlite.workers import workers


class Turn(msgspec.Struct, frozen=True):
    """A breaker that has to half-open, lacks probes, or has ready probes that no worker would claim."""

    breaker: str
    jobs: list[tuple[KindInQueue, bytes]]  # candidates, in the order of their turns
    stranded: list[bytes]  # ready, and no worker would claim them


class _Probes(msgspec.Struct, frozen=True):
    """How many probes run, how many are ready and have their turn, and the ready ones that no worker would claim."""

    running: int = 0
    ready: int = 0
    stranded: list[bytes] = []


def find_turns(db: Connection, limit: int, turns: Turns, now: int) -> list[Turn]:
    at = moment(now)
    found = []
    served: Serving | None = None
    for breaker in map(breakers.read, db.rows(SQL["gated_breakers"])):
        due = rules.due(breaker, at)
        if not due and breaker.state is not BreakerState.HALF_OPEN:
            continue
        served = served or _serving(db, now)
        probes = _Probes() if due else _probes(db, breaker, served, now)
        room = min(rules.probe_room(breaker, probes.running, probes.ready), limit)
        jobs = _candidates(db, breaker.name, room, served, turns)
        if due or jobs or probes.stranded:
            found.append(Turn(breaker.name, jobs, probes.stranded))
    return found


def admit(
    db: Connection, found: Iterable[Turn], placing: placement.Placing, blocking: placement.Placing, now: int
) -> int:
    """Moves the jobs found, if their state is unchanged; returns how many. `placing` treats no kind as paused."""
    moved = 0
    for turn in found:
        breaker = breakers.find(db, turn.breaker)
        if breaker is not None and rules.due(breaker, moment(now)):
            breaker = breakers.put(db, breaker, rules.half_opened(breaker, moment(now)), now)
        if breaker is None or breaker.state is not BreakerState.HALF_OPEN:
            continue
        moved += sum(block(db, job_id, blocking) for job_id in turn.stranded)
        db.run(SQL["delete_gone_probes"], (breaker.name,))
        probes = _probes(db, breaker, Serving(None), now)
        for _, job_id in turn.jobs[: rules.probe_room(breaker, probes.running, probes.ready)]:
            row = db.row(SQL["blocked_row"], (job_id,))
            if row is None or row[0] != placement.PAUSED:
                continue
            _, _, _, seq, *carried = row
            if not limits.Slots(db, now).take(job_id):
                continue
            db.run(SQL["delete_blocked"], (job_id,))
            db.run(SQL["put_probe"], (breaker.name, job_id, breaker.round, None, now))
            placing.add(job_id, Carried(*carried), None, seq)
            moved += 1
    return moved


def block(
    db: Connection, job_id: bytes, blocking: placement.Placing, paused: placement.BlockedKinds | None = None
) -> bool:
    """Blocks a job if it is still ready, and its kind is one of `paused` (None: any)."""
    row = db.row(SQL["ready_row"], (job_id,))
    if row is None:
        return False
    seq, carried = row[0], Carried(*row[1:])
    if paused is not None and carried.kind not in paused:
        return False
    if paused is not None and not paused[carried.kind] and limits.admitted(db, job_id):
        return False
    db.run(SQL["delete_ready"], (job_id,))
    blocking.add(job_id, carried, None, seq)
    return True


def _serving(db: Connection, now: int) -> Serving:
    alive = ((worker.lanes, worker.kinds) for worker in workers(db, now) if worker.alive)
    return serving(alive, {(scope, name) for scope, name, *_ in db.rows(SQL["pauses"])})


def _probes(db: Connection, breaker: Breaker, served: Serving, now: int) -> _Probes:
    running, ready, stranded = 0, 0, []
    turn: timedelta = rules.probe_turn(breaker.policy)
    for job_id, since, runs, kind, queue, tenant in db.rows(
        SQL["breaker_probes"], {"breaker": breaker.name, "now": now}
    ):
        if kind is None:
            running += runs
        elif not served.takes(kind, queue, tenant):
            stranded.append(job_id)
        else:
            ready += since + span(turn) > now
    return _Probes(running, ready, stranded)


def _candidates(
    db: Connection, name: str, limit: int, served: Serving, turns: Turns
) -> list[tuple[KindInQueue, bytes]]:
    if limit <= 0:
        return []
    waiting = [queue for kind in breakers.kinds_of(db, name) for queue in _waiting_queues(db, kind)]
    queues: list[list[tuple[KindInQueue, bytes]]] = []
    for who, tenants in served.first_taken(turns.order(waiting), limit):
        if jobs := _first_jobs(db, who, tenants, limit):
            queues.append([(who, job_id) for job_id in jobs])
        if len(queues) == limit:
            break
    return round_robin(queues, limit)


def _waiting_queues(db: Connection, kind: str) -> Iterator[tuple[KindInQueue, QueuePosition]]:
    """The queues in which due jobs of the kind wait, each with the position of its first job."""
    beyond: str | bytes = ""
    while (found := db.row(SQL["first_waiting_queue"], {"kind": kind, "beyond": beyond})) is not None:
        queue, priority, seq = found
        yield KindInQueue(kind, queue), (priority, seq)
        beyond = stored(found)[0]


def _first_jobs(db: Connection, who: KindInQueue, tenants: frozenset[str] | None, limit: int) -> list[bytes]:
    """The first jobs of one kind and queue; those of tenants by another index."""
    wanted = {"kind": who.kind, "queue": who.queue, "limit": limit}
    if tenants is None:
        found = db.rows(SQL["probe_candidates"], wanted)
    else:
        found = [
            row
            for tenant in tenants
            for row in db.rows(SQL["probe_candidates_of_tenant"], {**wanted, "tenant": tenant})
        ]
    return [job_id for *_, job_id in sorted(found)[:limit]]


def find_rejected(db: Connection, limit: int, now: int) -> list[bytes]:
    """Up to `limit` jobs that a breaker has rejected inside their handlers and that may run again.

    If the breaker is not closed, only as many as may probe.
    """
    found: list[bytes] = []
    served: Serving | None = None
    for (name,) in db.rows(SQL["awaited_breakers"]):
        breaker = breakers.find(db, name)
        probing = 0
        if breaker is not None and breaker.state is BreakerState.HALF_OPEN:
            probing = db.value(SQL["count_probes"], (name, breaker.round, now))
        room = room_for_rejected(breaker, probing, moment(now))
        if room == 0:
            continue
        seen = limit if room is None else min(CANDIDATES, limit)
        waiting = [RejectedJob[bytes](*row) for row in db.rows(SQL["rejected_jobs"], (name, seen))]
        if room is None:
            found += [one.job_id for one in waiting]
        else:
            served = served or _serving(db, now)
            found += choose_rejected(waiting, room, served)
        if len(found) >= limit:
            break
    return found[:limit]
