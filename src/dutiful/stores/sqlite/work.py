"""Claims jobs, renews claims and settles them."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from dutiful.acting import EVERY_LANE, PauseScope
from dutiful.core.breaker import GATES, BreakerState
from dutiful.core.errors import UsageError
from dutiful.core.job import Claim, Token
from dutiful.core.pipeline import PhaseState
from dutiful.core.settle import Change
from dutiful.core.transitions import State
from dutiful.stores.sqlite import burial, outbox, places, tracking
from dutiful.stores.sqlite.codec import (
    errors_json,
    maybe_checked,
    maybe_uuid,
    span,
    to_json,
    uuid,
)
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.looking import lines
from dutiful.stores.sqlite.sql import SQL
from dutiful.working import Ask, Completion, Line, Refusal, Renewal, Verdict

_STOPPING = (PauseScope.KIND.value, GATES[BreakerState.OPEN])
_ALIVE = (State.READY, State.SCHEDULED, State.BLOCKED)
_SUCCESS, _NO_SUCCESS = ("done", "partial"), (State.FAILED, State.CANCELLED)


def peek(db: Connection, kinds: Sequence[str]) -> list[Line]:
    wanted = to_json(list(kinds))
    found = ((*line, db.value(SQL["first_of_line"], (*line, wanted))) for line in lines(db))
    return [Line(queue, priority, seq) for queue, priority, seq in found if seq is not None]


def claim(db: Connection, ask: Ask, now: int) -> list[Claim]:
    paused = {(scope, name) for scope, name in db.rows(SQL["pauses_for_claim"])}
    if not paused.isdisjoint(((PauseScope.LANE.value, ask.lane), (PauseScope.LANE.value, EVERY_LANE))):
        return []
    open_lines = [line for line in ask.lines if (PauseScope.QUEUE.value, line.queue) not in paused]
    stopped = {name for scope, name in paused if scope in _STOPPING}
    kinds = to_json([kind for kind in ask.kinds if kind not in stopped])
    picked = _pick(db, open_lines, kinds, ask)
    if not picked:
        return []
    expires = now + span(ask.lease)
    worker = ask.worker_id.bytes
    claim_id: int = db.value(SQL["next_claim"], (len(picked),)) - len(picked)
    leases, claims = [], []
    for (queue, priority, seq, job_id, attempt, crashes, kind, payload, max_attempts, tenant, correlation_id, parent_id,
         subject, options, due_at) in picked:  # fmt: skip
        claim_id += 1
        leases.append((job_id, claim_id, worker, attempt + 1, crashes, seq, now, expires))
        claims.append(
            Claim(uuid(job_id), claim_id, attempt + 1, crashes, seq, kind, queue, payload, priority, max_attempts,
                  tenant, correlation_id, maybe_uuid(parent_id), subject, options, max(now - due_at, 0) / 1e6)
        )  # fmt: skip
    db.many(SQL["take_ready"], [row[:3] for row in picked])
    db.many(SQL["insert_lease"], leases)
    if db.value(SQL["any_queued_key"]):
        db.many(SQL["free_queued_key"], [row[3:4] for row in picked])
    return claims


def _pick(db: Connection, lines: Sequence[Line], kinds: str, ask: Ask) -> list[Row]:
    """Rows of `ready` in order of lines and seq: up to `limit` unsuspected ones, and the suspects besides."""
    limit, suspects = ask.limit, ask.suspects
    if suspects > 0 and not db.value(SQL["any_suspect"]):
        suspects = 0
    picked: list[Row] = []
    for line in lines:
        if limit <= 0 and suspects <= 0:
            break
        found = []
        if limit > 0:
            found = _unsuspected(db, line, kinds, ask.tenants, limit)
            limit -= len(found)
        if suspects > 0:
            strange = _suspected(db, line, kinds, ask.tenants, suspects)
            suspects -= len(strange)
            found = sorted(found + strange, key=_seq) if strange else found
        picked += found
    return picked


def _unsuspected(db: Connection, line: Line, kinds: str, tenants: Sequence[str], limit: int) -> list[Row]:
    place = (line.queue, line.priority, line.seq, kinds, limit)
    if not tenants:
        return db.rows(SQL["pick_line"], place)
    found = [row for tenant in {*tenants} for row in db.rows(SQL["pick_line_of_tenant"], (tenant, *place))]
    return sorted(found, key=_seq)[:limit]


def _suspected(db: Connection, line: Line, kinds: str, tenants: Sequence[str], limit: int) -> list[Row]:
    whose = to_json(list(tenants)) if tenants else None
    place = {"queue": line.queue, "priority": line.priority, "kinds": kinds, "tenants": whose, "limit": limit}
    return db.rows(SQL["pick_suspects"], place)


def _seq(row: Row) -> int:
    seq: int = row[2]
    return seq


def complete(db: Connection, done: Sequence[Completion], now: int) -> list[Refusal]:
    tokens = [(one.job_id.bytes, one.claim_id) for one in done]
    written = db.many(
        SQL["finish_completed"],
        [(*token, now, maybe_checked(one.result)) for token, one in zip(tokens, done, strict=True)],
    )
    refused: list[Refusal] = []
    if written != len(done):
        lost = [one for one, token in zip(done, tokens, strict=True) if db.row(SQL["held"], token) is None]
        refused = [refuse(db, one.job_id, one.claim_id, "done", now) for one in lost]
    db.many(SQL["end_lease"], tokens)
    # By claims: of a job that was lost and claimed again there may be two in one batch, of which one is held.
    gone = {refusal.claim_id for refusal in refused}
    ended = [job_id for job_id, claim_id in tokens if claim_id not in gone]
    if db.value(SQL["any_active_key"]):
        db.many(SQL["free_active_key"], [(job_id,) for job_id in ended])
    naming = [one.job_id.bytes for one in done if one.webhook and one.claim_id not in gone]
    outbox.announce(db, ended, naming, now, State.COMPLETED)
    return refused


def settle(db: Connection, changes: Sequence[Change], lapsed_only: bool, now: int) -> list[Refusal]:
    paused = places.paused_kinds(db)
    placing = places.Placing(db, paused, now)
    phased = tracking.any_phase(db)
    ended: list[bytes] = []
    refused: list[Refusal] = []
    for change in changes:
        held = db.row(SQL["held"], (change.job_id.bytes, change.claim_id))
        if held is None:
            # What a rescuer came too late for was no outcome of the claim, so there is nothing to record.
            refused.append(refuse(db, change.job_id, change.claim_id, change.outcome, now, record=not lapsed_only))
        elif lapsed_only and held[5] > now:
            refused.append(Refusal(change.job_id, change.claim_id, Verdict.LOST))
        elif change.to.final:
            _finish(db, change, held, phased, now)
            ended.append(change.job_id.bytes)
        elif change.to not in _ALIVE:
            raise UsageError(f"a settled job cannot become {change.to}")
        elif held[6] is not None:
            refused.append(Refusal(change.job_id, change.claim_id, Verdict.CANCEL_REQUESTED))
        else:
            _keep_alive(db, change, held, placing, phased, now)
    placing.write()
    if ended:
        outbox.announce(db, ended, ended, now)
    return refused


def _finish(db: Connection, change: Change, held: Row, phased: bool, now: int) -> None:
    _, _, worker_id, claimed_at, _, _, _, cancel_reason = held
    job_id = change.job_id.bytes
    errors = errors_json(change.errors)
    if change.to is State.CANCELLED and cancel_reason is not None:
        errors = errors_json(({"type": "Cancelled", "message": cancel_reason},))  # whoever asked for it has said why
    db.run(SQL["end_lease"], (job_id, change.claim_id))
    db.run(
        SQL["insert_finished"],
        (job_id, change.claim_id, change.to.value, change.attempt, change.crashes, worker_id, claimed_at, now,
         maybe_checked(change.result), errors),
    )  # fmt: skip
    if change.to is State.FAILED:
        burial.bury(db, job_id, change.errors, change.attempt, now)
    tracking.stop_phases(db, change, phased, now)
    places.let_go(db, [job_id])


def _keep_alive(db: Connection, change: Change, held: Row, placing: places.Placing, phased: bool, now: int) -> None:
    attempt, _, worker_id, claimed_at, seq, _, _, _ = held
    job_id = change.job_id.bytes
    db.run(SQL["end_lease"], (job_id, change.claim_id))
    run_at = now + span(change.delay) if change.to is State.SCHEDULED and change.delay is not None else None
    if change.outcome != "released":
        error = to_json(change.errors[0]) if change.errors else None
        if change.barred_by is not None:
            # Of a job that asks again and again only the last time is kept, however long the breaker is open.
            db.run(SQL["forget_barred"], (job_id, change.barred_by))
        db.run(
            SQL["insert_attempt"],
            (job_id, change.claim_id, attempt, change.outcome, worker_id, claimed_at, now, run_at, error),
        )
    tracking.stop_phases(db, change, phased, now)
    line = db.row(SQL["where_to"], (job_id,))
    assert line is not None
    placing.add(
        job_id, line, change.attempt, change.crashes, run_at, seq if change.keep_seq else None, change.barred_by
    )


def refuse(db: Connection, job_id: UUID, claim_id: int, outcome: str, now: int, *, record: bool = True) -> Refusal:
    """Why a claim that is not held was refused; recorded once, since what was done under it is lost."""
    raw = job_id.bytes
    ended = db.value(SQL["ended_by"], (raw, claim_id))
    # A success is no repeat of what somebody else has ended otherwise, by hand or for its dead worker.
    if ended is not None and not (outcome in _SUCCESS and ended in _NO_SUCCESS):
        return Refusal(job_id, claim_id, Verdict.REPEATED)
    before = db.rows(SQL["outcomes_of_claim"], (raw, claim_id))
    words = {word for word, _ in before}
    # Giving back leaves no row; a claim that was taken from us has left one.
    if outcome in words or (outcome == "released" and not words):
        return Refusal(job_id, claim_id, Verdict.REPEATED)
    if record and "refused" not in words and db.value(SQL["job_exists"], (raw,)):
        attempt = before[0][1] if before else 0
        error = to_json({"type": "ClaimLost", "message": f"its outcome came after the claim was lost: {outcome}"})
        db.run(SQL["insert_attempt"], (raw, claim_id, attempt, "refused", None, None, now, None, error))
    return Refusal(job_id, claim_id, Verdict.LOST)


def renew(db: Connection, tokens: Sequence[Token], lease: timedelta, now: int) -> Renewal:
    expires = now + span(lease)
    return _renewal((token, db.row(SQL["renew"], (token.job_id.bytes, token.claim_id, expires))) for token in tokens)


def check(db: Connection, tokens: Sequence[Token]) -> Renewal:
    return _renewal((token, db.row(SQL["is_held"], (token.job_id.bytes, token.claim_id))) for token in tokens)


def _renewal(found: Iterable[tuple[Token, Row | None]]) -> Renewal:
    lost, cancel = set(), set()
    for token, lease in found:
        if lease is None:
            lost.add(token.claim_id)
        elif lease[0] is not None:
            cancel.add(token.job_id)
    return Renewal(frozenset(lost), frozenset(cancel))


def release(db: Connection, tokens: Sequence[Token], now: int) -> None:
    """Give claims back unspent, with their old places in line; those that are lost or to be cancelled stay."""
    placing = places.Placing(db, places.paused_kinds(db), now)
    phased = tracking.any_phase(db)
    for token in tokens:
        held = db.row(SQL["held"], (token.job_id.bytes, token.claim_id))
        if held is not None and held[6] is None:
            change = Change(
                token.job_id, token.claim_id, State.READY, "released", held[0] - 1, held[1], keep_seq=True,
                phase_to=PhaseState.INTERRUPTED,
            )  # fmt: skip
            _keep_alive(db, change, held, placing, phased, now)
    placing.write()
