"""Dependents in SQLite: what becomes of jobs that wait for others.

Each watches the newest of those that has not ended, whose id is the key of its gate, so that the end of one of 10,000
does not make the others be read.
"""

from collections import deque
from collections.abc import Iterable, Sequence
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

BY_POLICY = {OnFailure.CANCEL: State.CANCELLED, OnFailure.FAIL: State.FAILED}
DEAD = BY_POLICY.values()


class SqliteDependents(Subject):
    @writes
    def release(self, db: Connection, ended: Sequence[UUID], limit: int, *, now: datetime | None = None) -> Release:
        return release(db, [job_id.bytes for job_id in ended], limit, clock(now))

    @reads
    def counts(self, db: Connection, job_ids: Sequence[UUID]) -> dict[UUID, int]:
        counted = {job_id: db.value(SQL["count_edges"], (job_id.bytes,)) for job_id in job_ids}
        return {job_id: count for job_id, count in counted.items() if count}

    @reads
    def edges(self, db: Connection, job_ids: Sequence[UUID], *, newest: int | None = None) -> list[Edge]:
        most = -1 if newest is None else newest
        rows = [(job_id, row) for job_id in job_ids for row in db.rows(SQL["edges_of"], (job_id.bytes, most))]
        return [Edge(job_id, uuid(needed), OnFailure(policy)) for job_id, (needed, policy) in reversed(rows)]


def release(db: Connection, ended: Iterable[bytes], limit: int, now: int) -> Release:
    """Decides jobs that wait for those of `ended` that have, and for those that this ends, in the open transaction."""
    states = {job_id: db.value(SQL["final_state"], (job_id,)) for job_id in ended}
    dead = [job_id for job_id, state in states.items() if state in DEAD]
    doomed, unread = _doomed(db, dead, limit)
    end_dependents(db, doomed, now)
    left = [job_id for job_id, state in states.items() if state is not None] + doomed
    watchers: list[bytes] = []
    while left and len(watchers) < limit:
        found = db.rows(SQL["watchers"], (left[0].hex(), limit - len(watchers)))
        watchers += [job_id for (job_id,) in found]
        if len(watchers) < limit:
            del left[0]
    deciding = Deciding(db, now)
    deciding.decide(watchers)
    following = dict.fromkeys((*unread, *left, *deciding.next))
    moved = len(doomed) + deciding.moved
    return Release(moved, frozenset(deciding.levels()), tuple(map(uuid, following)))


def _doomed(db: Connection, dead: Iterable[bytes], limit: int) -> tuple[list[bytes], list[bytes]]:
    """Up to `limit` jobs that end because they depend on the dead, or on others of them, unless an edge allows it.

    And those whose dependents were not all read.
    """
    found: dict[bytes, None] = {}
    unread = deque(dead)
    while unread and len(found) < limit:
        # More are not needed, although some may have been found before.
        dependents = [job_id for (job_id,) in db.rows(SQL["waiting_dependents"], (unread[0], limit))]
        new = [job_id for job_id in dependents if job_id not in found][: limit - len(found)]
        found |= dict.fromkeys(new)
        unread.extend(new)
        if len(found) < limit:
            unread.popleft()
    return list(found), list(unread)


def end_dependents(db: Connection, job_ids: Sequence[bytes], now: int) -> None:
    """Ends jobs that wait for others by the policies of their edges to jobs that are dead, or end with them."""
    ending = set(job_ids)
    chosen: dict[bytes, tuple[bytes, State | None, OnFailure]] = {}
    for job_id in job_ids:
        edges = db.rows(SQL["dead_needs"], (job_id,))
        needed, state, policy = next(edge for edge in edges if edge[1] is not None or edge[0] in ending)
        chosen[job_id] = needed, None if state is None else State(state), OnFailure(policy)
    for job_id, (needed, state, policy) in chosen.items():
        ended = state or BY_POLICY[chosen[needed][2]]
        if policy is OnFailure.FAIL:
            placement.end_waiting(db, job_id, State.FAILED, dependency_error(uuid(needed), ended), now)
        else:
            placement.cancel_waiting(db, job_id, dependency_reason(uuid(needed), ended), now)


class Deciding:
    """Decides jobs whose watched job has ended, in the open transaction."""

    def __init__(self, db: Connection, now: int) -> None:
        self._db = db
        self._now = now
        self._placing = placement.Placing(db, placement.blocked_kinds(db), now)
        self._doomed: list[bytes] = []
        self.moved = 0
        self.next: list[bytes] = []  # those that ended, and that are watched from now on, which may have ended

    def decide(self, job_ids: Iterable[bytes]) -> None:
        for job_id in job_ids:
            row = self._db.row(SQL["blocked_row"], (job_id,))
            if row is not None and row[0] == placement.DEPENDENCY:
                self._decide(job_id, row[1], row[2], Carried(*row[4:]))
        end_dependents(self._db, self._doomed, self._now)
        self._placing.write()

    def _decide(self, job_id: bytes, watched: str, run_at: int | None, carried: Carried) -> None:
        db = self._db
        # Those above the watched one have ended, unless they were added since.
        following = db.value(SQL["unended_need_below"], (job_id, bytes.fromhex(watched)))
        following = following or db.value(SQL["unended_need"], (job_id,))
        self.moved += 1
        if following is None and db.row(SQL["dead_needs"], (job_id,)) is not None:
            self._doomed.append(job_id)
            self.next.append(job_id)
        elif following is None:
            db.run(SQL["delete_blocked"], (job_id,))
            # It became due only now.
            self._placing.add(job_id, carried, None if run_at is not None and run_at <= self._now else run_at)
        elif following.hex() != watched:
            db.run(SQL["watch_need"], (following.hex(), job_id))
            self.next.append(following)
        else:
            self.moved -= 1

    def levels(self) -> set[tuple[str, int]]:
        return self._placing.levels
