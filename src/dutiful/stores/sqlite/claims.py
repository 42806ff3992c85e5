"""Claims in SQLite: claiming jobs, renewing leases, and reading held claims."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any
from uuid import UUID

from dutiful.core.breaker.state import PAUSE_SCOPES, BreakerState
from dutiful.core.job import Claim, ClaimToken, HeldClaim
from dutiful.core.settle import Change
from dutiful.store.claims import (
    NEAR_JOBS,
    ClaimRequest,
    Completion,
    Errors,
    JobClaimRequest,
    LeaseRenewer,
    QueueLevel,
    Refusal,
    Renewal,
    Transaction,
)
from dutiful.store.control import EVERY_LANE, PauseScope
from dutiful.stores import liveness
from dutiful.stores.order import LATE_COMMIT
from dutiful.stores.sqlite.claims_settle import complete, complete_one, release, settle
from dutiful.stores.sqlite.engine import SQL, Connection, Engine, Row, Subject, reads
from dutiful.stores.sqlite.engine.codec import clock, span, to_json
from dutiful.stores.sqlite.engine.columns import HELD_CLAIM, claim_decoder
from dutiful.stores.sqlite.engine.driver import ReplacedRow, stored
from dutiful.stores.sqlite.engine.engine import Threads
from dutiful.stores.sqlite.engine.transactions import BufferedTransaction, borrowed
from dutiful.stores.sqlite.leadership import may_rescue

_STOPPING = (PauseScope.KIND.value, PAUSE_SCOPES[BreakerState.OPEN])

_FIELDS = Claim.__struct_fields__  # a picked row has these columns, in this order
_PAYLOAD, _QUEUE, _CRASHES = map(_FIELDS.index, ("payload", "queue", "crashes"))
_order = itemgetter(*map(_FIELDS.index, ("seq", "job_id")))
_ready_key = itemgetter(*map(_FIELDS.index, ("queue", "priority", "seq", "job_id")))
_lease_values = itemgetter(*map(_FIELDS.index, ("job_id", "attempt", "crashes", "seq")))
_claim = claim_decoder()


class SqliteClaims(Subject):
    @reads
    def peek(self, db: Connection, kinds: Sequence[str], *, now: datetime | None = None) -> list[QueueLevel]:
        wanted = to_json(list(kinds))
        found = ((*level, db.value(SQL["first_of_level"], (*level, wanted))) for level in each_queue_level(db))
        return [QueueLevel(queue, priority, seq) for queue, priority, seq in found if seq is not None]

    @reads
    def peek_at(
        self, db: Connection, kinds: Sequence[str], levels: Sequence[QueueLevel], *, now: datetime | None = None
    ) -> list[QueueLevel]:
        wanted = to_json(list(kinds))
        found = ((at, db.value(SQL["first_near"], (at.queue, at.priority, at.seq, NEAR_JOBS, wanted))) for at in levels)
        return [QueueLevel(at.queue, at.priority, seq) for at, seq in found if seq is not None]

    async def claim(self, ask: ClaimRequest, *, now: datetime | None = None) -> list[Claim]:
        return await claimed(self._engine, lambda db: claim(db, ask, clock(now)))

    async def claim_jobs(self, ask: JobClaimRequest, *, now: datetime | None = None) -> list[Claim]:
        return await claimed(self._engine, lambda db: claim_jobs(db, ask, clock(now)))

    # skip_locked changes nothing: SQLite locks the whole file, not a single lease.

    async def complete(
        self, done: Sequence[Completion], *, skip_locked: bool = False, now: datetime | None = None
    ) -> list[Refusal]:
        return await self._engine.write(lambda db: complete(db, done, clock(now)))

    async def settle(
        self, changes: Sequence[Change], *, expired_only: bool = False, skip_locked: bool = False,
        now: datetime | None = None,
    ) -> list[Refusal]:  # fmt: skip
        return await self._engine.write(lambda db: settle(db, changes, expired_only, clock(now)))

    def renewer(self) -> LeaseRenewer:
        return SqliteLeaseRenewer(self._engine.threads)

    @asynccontextmanager
    async def transaction(
        self, token: ClaimToken, result: Callable[[], str | None], errors: Callable[[], Errors] = tuple
    ) -> AsyncIterator[Transaction]:
        buffered = BufferedTransaction()
        try:
            yield buffered
        finally:
            buffered.close()
        text, failed = result(), errors()

        def apply(db: Connection) -> None:
            complete_one(db, token, text, failed, clock(None))
            buffered.apply(db)

        await self._engine.write(apply)

    async def complete_within(
        self, connection: Any, token: ClaimToken, result: str | None, errors: Errors = ()
    ) -> None:
        self.complete_within_sync(connection, token, result, errors)

    def complete_within_sync(self, connection: Any, token: ClaimToken, result: str | None, errors: Errors = ()) -> None:
        with borrowed(connection, self._engine.driver, self._engine.path) as db:
            complete_one(db, token, result, errors, clock(None))

    async def expired(self, limit: int, *, now: datetime | None = None) -> list[HeldClaim]:
        return await self._engine.read(lambda db: _expired(db, limit, clock(now)))

    async def held_by(self, worker_id: UUID) -> list[HeldClaim]:
        return await self._engine.read(lambda db: _held(db, "claims_of_worker", (worker_id.bytes,)))

    async def held(self, job_id: UUID) -> HeldClaim | None:
        found = await self._engine.read(lambda db: _held(db, "held_claims", (job_id.bytes,)))
        return found[0] if found else None

    @reads
    def orphans(self, db: Connection) -> list[HeldClaim]:
        """The claims of workers whose processes have ended.

        A missing record does not prove that: a worker may sign off while a handler still runs.
        """
        claiming = db.rows(SQL["claiming_workers"])
        dead = (id_ for id_, host, pid, started in claiming if liveness.dead(host, pid, started))
        return [claim for id_ in dead for claim in _held(db, "claims_of_worker", (id_,))]


async def claimed(engine: Engine, claiming: Callable[[Connection], list[Claim]]) -> list[Claim]:
    """Makes claims. If the caller is cancelled, it will not run these jobs, so they are released."""
    asked: asyncio.Future[list[Claim]] = engine.submit(claiming)
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        asked.add_done_callback(partial(_release_claimed, engine))
        raise


def _release_claimed(engine: Engine, asked: "asyncio.Future[list[Claim]]") -> None:
    if not engine.is_open or asked.cancelled() or asked.exception() is not None:
        return
    tokens = [ClaimToken(claim.job_id, claim.claim_id) for claim in asked.result()]
    if tokens:
        engine.submit(lambda db: release(db, tokens, clock(None)))


def _expired(db: Connection, limit: int, now: int) -> list[HeldClaim]:
    return _held(db, "expired_claims", (now, limit)) if may_rescue(db, now) else []


class SqliteLeaseRenewer:
    """Renews leases before all other commands that wait for the writer.

    Its calls block their thread until they are committed, so they do not depend on the event loop.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def renew(self, tokens: Sequence[ClaimToken], lease: timedelta, *, now: datetime | None = None) -> Renewal:
        def renew(db: Connection) -> Renewal:
            # The clock is read by the writer, so that a renewal that waited is still for a whole lease.
            expires = clock(now) + span(lease)
            return _renewal((one, db.row(SQL["renew"], (one.job_id.bytes, one.claim_id, expires))) for one in tokens)

        return self._threads.writer.call(renew, urgent=True)

    def check(self, tokens: Sequence[ClaimToken]) -> Renewal:
        return self._threads.reader.call(
            lambda db: _renewal((one, db.row(SQL["is_held"], (one.job_id.bytes, one.claim_id))) for one in tokens)
        )

    def release(self, tokens: Sequence[ClaimToken]) -> None:
        self._threads.writer.call(lambda db: release(db, tokens, clock(None)), urgent=True)

    def close(self) -> None:
        """Does nothing: the connection belongs to the writer."""


def _renewal(found: Iterable[tuple[ClaimToken, Row | None]]) -> Renewal:
    lost, cancel = set(), set()
    for token, lease in found:
        if lease is None:
            lost.add(token.claim_id)
        elif lease[0] is not None:
            cancel.add(token.job_id)
    return Renewal(frozenset(lost), frozenset(cancel))


def each_queue_level(db: Connection) -> Iterator[tuple[str, int]]:
    """Every (queue, priority) with a ready job, found by stepping from one to the next by the primary key.

    Not those of a name that is not UTF-8, which no worker can have, and which cannot be asked for.
    """
    level = db.row(SQL["first_level"])
    while level is not None:
        if not isinstance(level, ReplacedRow):
            yield level[0], level[1]
        at = stored(level)
        level = db.row(SQL["next_level_of_queue"], at) or db.row(SQL["next_level_beyond_queue"], at[:1])


def claim(db: Connection, ask: ClaimRequest, now: int) -> list[Claim]:
    paused = pauses(db)
    if is_lane_paused(paused, ask.lane):
        return []
    levels = [level for level in ask.levels if (PauseScope.QUEUE.value, level.queue) not in paused]
    picked = _pick(db, levels, running_kinds(paused, ask.kinds), ask, now)
    return take(db, picked, ask.worker_id, ask.lease, now)


def claim_jobs(db: Connection, ask: JobClaimRequest, now: int) -> list[Claim]:
    paused = pauses(db)
    if is_lane_paused(paused, ask.lane):
        return []
    wanted = {
        "kinds": running_kinds(paused, ask.kinds),
        "tenants": to_json(list(ask.tenants)) if ask.tenants else None,
        "now": now,
    }
    suspects, picked = ask.suspects, []
    for job_id in dict.fromkeys(ask.job_ids):
        row = db.row(SQL["pick_job"], {**wanted, "id": job_id.bytes})
        if row is None or (PauseScope.QUEUE.value, row[_QUEUE]) in paused:
            continue
        if ask.queues and row[_QUEUE] not in ask.queues:
            continue
        if row[_CRASHES]:
            if suspects <= 0:
                continue
            suspects -= 1
        picked.append(row)
    db.many(SQL["take_deliveries_of"], [_lease_values(row)[:1] for row in picked])
    return take(db, picked, ask.worker_id, ask.lease, now)


def pauses(db: Connection) -> set[tuple[str, str]]:
    return {(scope, name) for scope, name in db.rows(SQL["pauses_for_claim"])}


def is_lane_paused(paused: set[tuple[str, str]], lane: str) -> bool:
    return not paused.isdisjoint(((PauseScope.LANE.value, lane), (PauseScope.LANE.value, EVERY_LANE)))


def running_kinds(paused: set[tuple[str, str]], kinds: Sequence[str]) -> str:
    stopped = {name for scope, name in paused if scope in _STOPPING}
    return to_json([kind for kind in kinds if kind not in stopped])


def take(db: Connection, picked: Sequence[Row], worker_id: UUID, lease: timedelta, now: int) -> list[Claim]:
    """Makes ready rows leases."""
    if not picked:
        return []
    expires = now + span(lease)
    worker = worker_id.bytes
    first: int = db.value(SQL["next_claim"], (len(picked),)) - len(picked) + 1
    leases = [
        (job_id, claim_id, worker, attempt, crashes, seq, now, expires)
        for claim_id, (job_id, attempt, crashes, seq) in enumerate(map(_lease_values, picked), first)
    ]
    db.many(SQL["take_ready"], map(_ready_key, picked))
    db.many(SQL["insert_lease"], leases)
    if db.value(SQL["any_queued_key"]):
        db.many(SQL["free_queued_key"], [one[:1] for one in leases])
    return [*map(_claim, map(_without_replaced_payload, picked), count(first))]


def _without_replaced_payload(row: Row) -> Row:
    """A picked row; if a text was replaced, without JSON, so that no handler is called with what was not stored."""
    return (*row[:_PAYLOAD], "", *row[_PAYLOAD + 1 :]) if isinstance(row, ReplacedRow) else row


def _pick(db: Connection, levels: Sequence[QueueLevel], kinds: str, ask: ClaimRequest, now: int) -> list[Row]:
    """Ready jobs in order of levels and seq: up to `limit` that are no suspects, and suspects besides.

    What a level's `after` would spare is not there: SQLite removes index entries at once.
    """
    limit, suspects = ask.limit, ask.suspects
    if suspects > 0 and not db.value(SQL["any_suspect"]):
        suspects = 0
    picked: list[Row] = []
    recent = now - LATE_COMMIT
    for level in levels:
        if limit <= 0 and suspects <= 0:
            break
        found = []
        wanted = {"queue": level.queue, "priority": level.priority, "kinds": kinds, "now": now}
        if limit > 0:
            found = _unsuspected(db, {**wanted, "seq": min(level.seq, recent), "limit": limit}, ask.tenants, limit)
            limit -= len(found)
        if suspects > 0:
            whose = to_json(list(ask.tenants)) if ask.tenants else None
            strange = db.rows(SQL["pick_suspects"], {**wanted, "tenants": whose, "limit": suspects})
            suspects -= len(strange)
            found = sorted(found + strange, key=_order) if strange else found
        picked += found
    return picked


def _unsuspected(db: Connection, wanted: dict[str, Any], tenants: Sequence[str], limit: int) -> list[Row]:
    if not tenants:
        return db.rows(SQL["pick_level"], wanted)
    found = [row for tenant in {*tenants} for row in db.rows(SQL["pick_level_of_tenant"], {**wanted, "tenant": tenant})]
    return sorted(found, key=_order)[:limit]


def _held(db: Connection, statement: str, bindings: Row) -> list[HeldClaim]:
    return [HELD_CLAIM.decode(row) for row in db.rows(SQL[statement], bindings)]
