"""Promotion in SQLite: makes jobs ready that are due, or whose gate (a pause, a breaker, a dependency) has opened."""

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from dutiful.core.breaker.probes import Turns
from dutiful.store.promotion import Promotion
from dutiful.stores.sqlite import breakers_probes, dependents, placement
from dutiful.stores.sqlite.engine import SQL, Connection, Engine, Subject, reads, writes
from dutiful.stores.sqlite.engine.codec import clock, maybe_moment
from dutiful.stores.sqlite.engine.columns import Carried

Kinds = frozenset[tuple[str, int]]
"""Kinds of which no job is claimed, because they are paused or their breaker is open; each with the start of that."""


class Found(msgspec.Struct, frozen=True):
    """Jobs to block or unblock, and the stopped kinds that have no ready jobs any more."""

    due: list[bytes]  # blocked, and have become due
    admit: list[bytes]
    block: list[bytes]
    turns: list[breakers_probes.Turn]
    swept: Kinds
    next_run_at: int | None
    ended: list[bytes] = []  # others wait for these still

    @property
    def nothing(self) -> bool:
        return not (self.due or self.admit or self.block or self.turns or self.ended)


Search = Callable[[Connection, int, Kinds, Turns, int], Found]


class SqlitePromotion(Subject):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.swept: Kinds = frozenset()
        self._turns = Turns()

    @writes
    def promote(self, db: Connection, limit: int, *, now: datetime | None = None) -> Promotion:
        at = clock(now)
        due = db.rows(SQL["due"], (at, limit))
        placing = placement.Placing(db, placement.blocked_kinds(db), at)
        for run_at, job_id, *carried in due:
            placing.add(job_id, Carried(*carried), run_at)
        if due:
            db.many(SQL["take_scheduled"], [row[:2] for row in due])
            placing.write()
        return Promotion(len(due), frozenset(placing.levels), maybe_moment(db.value(SQL["next_run_at"])))

    @reads
    def next_due(self, db: Connection) -> timedelta | None:
        run_at = db.value(SQL["next_run_at"])
        return None if run_at is None else timedelta(microseconds=run_at - clock(None))

    async def sweep(self, limit: int, *, now: datetime | None = None) -> Promotion:
        return await self._move(_search_all, limit, now)

    async def unblock(self, limit: int, *, now: datetime | None = None) -> Promotion:
        return await self._move(_search_unblockable, limit, now)

    async def _move(self, search: Search, limit: int, now: datetime | None) -> Promotion:
        """Searches on the browser thread, so that no write waits for the search, and then moves what was found."""
        found = await self._engine.browse(lambda db: search(db, limit, self.swept, self._turns, clock(now)))
        self._turns.record(who for turn in found.turns for who, _ in turn.jobs)
        if found.nothing:
            promotion = Promotion(0, next_run_at=maybe_moment(found.next_run_at))
        else:
            promotion = await self._engine.write(lambda db: _move(db, found, limit, clock(now)))
        self.swept = found.swept
        return promotion


def stopped_kinds(db: Connection) -> Kinds:
    return frozenset((name, since) for name, since in db.rows(SQL["stopped_kinds"]))


def _search_all(db: Connection, limit: int, swept: Kinds, turns: Turns, now: int) -> Found:
    stopped = stopped_kinds(db)
    block: list[bytes] = []
    if not stopped <= swept:
        block = [job_id for (job_id,) in db.rows(SQL["ready_of_stopped_kinds"], (limit,))]
    found = _search_unblockable(db, limit, swept, turns, now)
    ended = [job_id for (job_id,) in db.rows(SQL["ended_needs"], (limit,))]
    clean = len(block) < limit
    return msgspec.structs.replace(found, ended=ended, block=block, swept=stopped if clean else swept)


def _search_unblockable(db: Connection, limit: int, swept: Kinds, turns: Turns, now: int) -> Found:
    """The fast part of the search: jobs that may become ready, and blocked jobs that have become due."""
    due = [job_id for (job_id,) in db.rows(SQL["due_behind_gate"], (now, limit))]
    admit = _no_longer_paused(db, limit)
    admit += breakers_probes.find_rejected(db, limit - len(admit), now)
    probes = breakers_probes.find_turns(db, limit, turns, now)
    return Found(due, admit, [], probes, swept, db.value(SQL["next_run_at"]))


def _no_longer_paused(db: Connection, limit: int) -> list[bytes]:
    """Jobs of resumed kinds by position; at most `limit` of each kind, so that not all waiting jobs are sorted."""
    kinds = [kind for (kind,) in db.rows(SQL["kinds_no_longer_paused"])]
    waiting = [row for kind in kinds for row in db.rows(SQL["waiting_of_kind"], (kind, limit))]
    return [job_id for _, job_id in sorted(waiting, key=lambda row: (row[0] is None, row[0]))[:limit]]


def _move(db: Connection, found: Found, limit: int, now: int) -> Promotion:
    """Moves the jobs found, if their state is unchanged."""
    paused = placement.blocked_kinds(db)
    placing = placement.Placing(db, paused, now)
    moved = db.many(SQL["assign_due_seq"], [(job_id,) for job_id in found.due])
    moved += sum(_admit(db, job_id, placing, paused) for job_id in found.admit)
    moved += sum(breakers_probes.block(db, job_id, placing, paused) for job_id in found.block)
    probes = placement.Placing(db, {}, now)
    moved += breakers_probes.admit(db, found.turns, probes, placing, now)
    placing.write()
    probes.write()
    released = dependents.release(db, found.ended, limit, now)
    levels = frozenset(placing.levels | probes.levels | released.levels)
    return Promotion(moved + released.moved, levels, maybe_moment(db.value(SQL["next_run_at"])), released.next)


def _admit(db: Connection, job_id: bytes, placing: placement.Placing, paused: placement.BlockedKinds) -> bool:
    row = db.row(SQL["blocked_row"], (job_id,))
    if row is None:
        return False
    gate, key, run_at, seq, *carried = row
    if gate == placement.PAUSED and key in paused:
        return False
    db.run(SQL["delete_blocked"], (job_id,))
    placing.add(job_id, Carried(*carried), run_at, seq)
    return True
