"""Opens and shuts the gates before which blocked jobs wait: paused kinds, open breakers, jobs that they depend on."""

import msgspec

from dutiful.core.ids import public
from dutiful.core.serving import Turns
from dutiful.core.transitions import State
from dutiful.duties import Promotion
from dutiful.stores.sqlite import barred, places, probing
from dutiful.stores.sqlite.codec import maybe_moment, uuid
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL

Kinds = frozenset[tuple[str, int]]
"""Kinds of which nothing is claimed, paused or with an open breaker, each with the time since when."""

_MET = (State.COMPLETED, State.COMPLETED_WITH_ERRORS)


class Found(msgspec.Struct, frozen=True):
    """Jobs that seem to stand on the wrong side of a gate, and the pauses whose kinds are in no line any more."""

    due: list[bytes]
    shut_out: list[bytes]
    let_in: list[bytes]
    turns: list[probing.Turn]
    swept: Kinds
    next_run_at: int | None

    @property
    def nothing(self) -> bool:
        return not (self.due or self.shut_out or self.let_in or self.turns)


def stopped_kinds(db: Connection) -> Kinds:
    return frozenset((name, since) for name, since in db.rows(SQL["stopped_kinds"]))


def look(db: Connection, limit: int, swept: Kinds, turns: Turns, now: int) -> Found:
    """Find what is to be moved; only a look, so that however many jobs wait, no writer waits for it."""
    stopped = stopped_kinds(db)
    let_in: list[bytes] = []
    if not stopped <= swept:
        let_in = [job_id for (job_id,) in db.rows(SQL["ready_of_stopped_kinds"], (limit,))]
    found = look_outward(db, limit, swept, turns, now)
    shut_out = found.shut_out + [
        job_id for (job_id,) in db.rows(SQL["dependency_decided"], (limit - len(found.shut_out),))
    ]
    clean = len(let_in) < limit
    return msgspec.structs.replace(found, shut_out=shut_out, let_in=let_in, swept=stopped if clean else swept)


def _no_longer_paused(db: Connection, limit: int) -> list[bytes]:
    """The first in line first; of each kind no more than can be moved, so that nobody sorts all that wait."""
    kinds = [kind for (kind,) in db.rows(SQL["kinds_no_longer_paused"])]
    waiting = [row for kind in kinds for row in db.rows(SQL["waiting_of_kind"], (kind, limit))]
    return [job_id for _, job_id in sorted(waiting, key=_place)[:limit]]


def _place(row: Row) -> tuple[bool, int]:
    return row[0] is None, row[0] or 0


def look_outward(db: Connection, limit: int, swept: Kinds, turns: Turns, now: int) -> Found:
    """As look does, but without its walks: only for what may leave, and what becomes due before its gate."""
    due = [job_id for (job_id,) in db.rows(SQL["due_before_gate"], (now, limit))]
    shut_out = _no_longer_paused(db, limit)
    shut_out += barred.look(db, limit - len(shut_out), now)
    probes = probing.look(db, limit, turns, now)
    return Found(due, shut_out, [], probes, swept, db.value(SQL["next_run_at"]))


def move(db: Connection, found: Found, now: int) -> Promotion:
    """Move what was found, if it still is as it was seen."""
    paused = places.paused_kinds(db)
    placing = places.Placing(db, paused, now)
    placed = places.place_due(db, found.due)
    moved = placed + sum(_admit(db, job_id, placing, paused, now) for job_id in found.shut_out)
    moved += sum(_shut(db, job_id, placing, paused) for job_id in found.let_in)
    probes = places.Placing(db, frozenset(), now)
    moved += probing.let_out(db, found.turns, probes, placing, now)
    placing.write()
    probes.write()
    return Promotion(moved, frozenset(placing.lines | probes.lines), maybe_moment(db.value(SQL["next_run_at"])))


def _admit(db: Connection, job_id: bytes, placing: places.Placing, paused: frozenset[str], now: int) -> bool:
    row = db.row(SQL["blocked_row"], (job_id,))
    if row is None:
        return False
    gate, key, *line, attempt, crashes, run_at, seq = row
    if gate == places.PAUSED and key in paused:
        return False
    if gate == places.DEPENDENCY:
        needs = db.rows(SQL["ends_of_needs"], (job_id,))
        for needed, state in needs:
            if state in (State.FAILED, State.CANCELLED):
                became = "failed" if state == State.FAILED else "was cancelled"
                return places.cancel_waiting(db, job_id, f"job {public(uuid(needed))} it depends on {became}", now)
        if any(state not in _MET for _, state in needs):
            return False
        db.run(SQL["delete_dependencies"], (job_id,))
    db.run(SQL["leave_blocked"], (job_id,))
    placing.add(job_id, tuple(line), attempt, crashes, run_at, seq)
    return True


def _shut(db: Connection, job_id: bytes, placing: places.Placing, paused: frozenset[str]) -> bool:
    row = db.row(SQL["ready_row"], (job_id,))
    if row is None or row[2] not in paused:
        return False
    *line, attempt, crashes, seq = row
    db.run(SQL["leave_ready"], (job_id,))
    placing.add(job_id, tuple(line), attempt, crashes, None, seq)
    return True
