"""Dependents in SQLite: what becomes of jobs that wait for others.

Each watches the newest of those that has not ended, whose id is the key of its gate, so that the end of one of 10,000
does not make the others be read.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from uuid import UUID

from dutiful.core.job import OnFailure
from dutiful.core.settle import dependency_error, dependency_reason
from dutiful.core.states import State
from dutiful.store.dependents import Edge, Release
from dutiful.stores.sqlite import placement
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, reads, writes
from dutiful.stores.sqlite.engine.codec import clock, uuid
from dutiful.stores.sqlite.engine.columns import Carried


class SqliteDependents(Subject):
    @writes
    def release(self, db: Connection, ended: Sequence[UUID], limit: int, *, now: datetime | None = None) -> Release:
        raw = [job_id.bytes for job_id in ended]
        deciding = Deciding(db, clock(now))
        if dead := _take(db, "dependents_of_dead", raw, limit):
            deciding.decide(dead, dead=True)
        deciding.decide(_take(db, "watchers_of_ended", raw, limit))
        return deciding.done()

    @reads
    def edges(self, db: Connection, job_ids: Sequence[UUID], *, newest: int | None = None) -> list[Edge]:
        most = -1 if newest is None else newest
        rows = [(job_id, row) for job_id in job_ids for row in db.rows(SQL["edges_of"], (job_id.bytes, most))]
        return [Edge(job_id, uuid(needed), OnFailure(policy)) for job_id, (needed, policy) in reversed(rows)]


def _take(db: Connection, statement: str, job_ids: Iterable[bytes], limit: int) -> list[bytes]:
    found: dict[bytes, None] = {}
    for job_id in job_ids:
        found |= dict.fromkeys(one for (one,) in db.rows(SQL[statement], (job_id, limit - len(found))))
        if len(found) >= limit:
            break
    return list(found)


class Deciding:
    """Decides jobs that wait for others, in the open transaction."""

    def __init__(self, db: Connection, now: int) -> None:
        self._db = db
        self._now = now
        self._placing = placement.Placing(db, placement.blocked_kinds(db), now)
        self._moved = 0
        self._ended: list[UUID] = []
        self._watched: list[UUID] = []

    def decide(self, job_ids: Collection[bytes], *, dead: bool = False) -> None:
        """`dead`: an edge may have failed although others have not ended."""
        for job_id in job_ids:
            row = self._db.row(SQL["blocked_row"], (job_id,))
            if row is not None and row[0] == placement.DEPENDENCY:
                self._decide(job_id, row[1], row[2], Carried(*row[4:]), dead)

    def _decide(self, job_id: bytes, watched: str, run_at: int | None, carried: Carried, dead: bool) -> None:
        db = self._db
        # Those above the watched one have ended, unless they were added since.
        following = db.value(SQL["unended_need_below"], (job_id, bytes.fromhex(watched)))
        following = following or db.value(SQL["unended_need"], (job_id,))
        failed = db.row(SQL["failed_need"], (job_id,)) if dead or following is None else None
        if failed is not None:
            self._end(job_id, uuid(failed[0]), State(failed[1]), OnFailure(failed[2]))
        elif following is None:
            db.run(SQL["delete_blocked"], (job_id,))
            # It became due only now.
            self._placing.add(job_id, carried, None if run_at is not None and run_at <= self._now else run_at)
            self._moved += 1
        elif following.hex() != watched:
            db.run(SQL["watch_need"], (following.hex(), job_id))
            self._watched.append(uuid(following))

    def _end(self, job_id: bytes, needed: UUID, state: State, policy: OnFailure) -> None:
        if policy is OnFailure.FAIL:
            error = dependency_error(needed, state)
            placement.end_waiting(self._db, job_id, State.FAILED, error, self._now)
        else:
            placement.cancel_waiting(self._db, job_id, dependency_reason(needed, state), self._now)
        self._ended.append(uuid(job_id))

    def done(self) -> Release:
        """Writes what became ready."""
        self._placing.write()
        moved = self._moved + len(self._ended) + len(self._watched)
        return Release(moved, frozenset(self._placing.levels), tuple(self._ended), tuple(self._watched))
