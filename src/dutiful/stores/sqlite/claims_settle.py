"""Settles claims in SQLite: the job ends, or waits for its next attempt. Only the holder of a claim can settle."""

from collections.abc import Sequence
from uuid import UUID

from dutiful.core.errors import UsageError
from dutiful.core.job import ClaimToken, PhaseState
from dutiful.core.settle import REFUSED, Change, is_repeat, refused_error
from dutiful.core.states import WAITING, State
from dutiful.store.claims import Completion, Errors, Refusal, RefusalReason, completion_lost
from dutiful.stores.sqlite import dead_letters_writer, placement, progress, steps, webhooks
from dutiful.stores.sqlite.engine import SQL, Connection
from dutiful.stores.sqlite.engine.codec import errors_json, maybe_checked, span, to_json
from dutiful.stores.sqlite.engine.columns import Carried, FinishedRow, LeaseRow


def complete(db: Connection, done: Sequence[Completion], now: int) -> list[Refusal]:
    tokens = [(one.job_id.bytes, one.claim_id) for one in done]
    written = db.many(
        SQL["finish_completed"],
        [(*token, now, maybe_checked(one.result)) for token, one in zip(tokens, done, strict=True)],
    )
    refused: list[Refusal] = []
    if written != len(done):
        refused = [refusal for one in done if (refusal := _refused_completion(db, one, now)) is not None]
    # By claim id: a batch may have two claims of one job, of which one was lost and the other is held.
    gone = {refusal.claim_id for refusal in refused}
    db.many(SQL["end_lease"], [token for token in tokens if token[1] not in gone] if gone else tokens)
    ended = [job_id for job_id, claim_id in tokens if claim_id not in gone]
    if db.value(SQL["any_active_key"]):
        db.many(SQL["free_active_key"], [(job_id,) for job_id in ended])
    naming = [one.job_id.bytes for one in done if one.webhook and one.claim_id not in gone]
    webhooks.write_posts(db, ended, naming, now, State.COMPLETED)
    return refused


def _refused_completion(db: Connection, done: Completion, now: int) -> Refusal | None:
    held = _held(db, done)
    if held is None:
        return _refuse(db, done.job_id, done.claim_id, "done", now)
    if held.cancel_requested_at is not None:
        return Refusal(done.job_id, done.claim_id, RefusalReason.CANCEL_REQUESTED)
    return None


def complete_one(db: Connection, token: ClaimToken, result: str | None, errors: Errors, now: int) -> None:
    """Completes one job in the open transaction; raises ClaimLost even if it was completed before.

    In that case the transaction's writes were committed before, and must not be committed twice.
    """
    if not _completed(db, token, result, errors, now):
        raise completion_lost(token)
    progress.complete_phase(db, token.job_id, result, now)


def _completed(db: Connection, token: ClaimToken, result: str | None, errors: Errors, now: int) -> bool:
    if not errors:
        # The caller does not know whether the job names a webhook of its own, so that is looked up.
        return not complete(db, [Completion(token.job_id, token.claim_id, result, webhook=True)], now)
    held = _held(db, token)
    if held is None:
        return False
    change = Change(
        token.job_id, token.claim_id, State.COMPLETED_WITH_ERRORS, "partial", held.attempt, held.crashes,
        result=result, errors=tuple(errors),
    )  # fmt: skip
    return not settle(db, [change], False, now)


def settle(db: Connection, changes: Sequence[Change], expired_only: bool, now: int) -> list[Refusal]:
    placing = placement.Placing(db, placement.blocked_kinds(db), now)
    phased = progress.any_phase(db)
    ended: list[bytes] = []
    refused: list[Refusal] = []
    for change in changes:
        held = _held(db, change)
        if expired_only and (held is None or held.expires_at > now):
            # A rescue that came too late is not an outcome of the claim, so there is nothing to record.
            refused.append(Refusal(change.job_id, change.claim_id, RefusalReason.LOST))
        elif held is None:
            refused.append(_refuse(db, change.job_id, change.claim_id, change.outcome, now))
        elif held.cancel_requested_at is not None and change.to is not State.CANCELLED:
            refused.append(Refusal(change.job_id, change.claim_id, RefusalReason.CANCEL_REQUESTED))
        elif change.to.final:
            _finish(db, change, held, phased, now)
            ended.append(change.job_id.bytes)
        elif change.to not in WAITING:
            raise UsageError(f"a settled job cannot become {change.to}")
        else:
            _put_back(db, change, held, placing, phased, now)
    placing.write()
    if ended:
        webhooks.write_posts(db, ended, ended, now)
    return refused


def release(db: Connection, tokens: Sequence[ClaimToken], now: int) -> None:
    """Makes claimed jobs ready again at their old positions, no attempt counted; skips lost and cancelled ones."""
    placing = placement.Placing(db, placement.blocked_kinds(db), now)
    phased = progress.any_phase(db)
    for token in tokens:
        held = _held(db, token)
        if held is not None and held.cancel_requested_at is None:
            change = Change(
                token.job_id, token.claim_id, State.READY, "released", held.attempt - 1, held.crashes, keep_seq=True,
                phase_to=PhaseState.INTERRUPTED, began=True,
            )  # fmt: skip
            _put_back(db, change, held, placing, phased, now)
    placing.write()


def _held(db: Connection, of: ClaimToken | Change | Completion) -> LeaseRow | None:
    row = db.row(SQL["held_lease"], (of.job_id.bytes, of.claim_id))
    return None if row is None else LeaseRow(*row)


def _finish(db: Connection, change: Change, held: LeaseRow, phased: bool, now: int) -> None:
    job_id = change.job_id.bytes
    errors = errors_json(change.errors)
    if change.to is State.CANCELLED and held.cancel_reason is not None:
        errors = errors_json(
            ({"type": "Cancelled", "message": held.cancel_reason},)
        )  # as the request to cancel gave it
    db.run(SQL["end_lease"], (job_id, change.claim_id))
    placement.finish(
        db,
        FinishedRow(
            job_id=job_id,
            claim_id=change.claim_id,
            state=change.to.value,
            attempt=change.attempt,
            crashes=change.crashes,
            worker_id=held.worker_id,
            claimed_at=held.claimed_at,
            finished_at=now,
            result=maybe_checked(change.result),
            errors=errors,
        ),
    )
    if change.to is State.FAILED:
        dead_letters_writer.write(db, job_id, change.errors, change.attempt, now)
    progress.stop_phases(db, change, phased, now)
    placement.free(db, job_id)


def _put_back(
    db: Connection, change: Change, held: LeaseRow, placing: placement.Placing, phased: bool, now: int
) -> None:
    """Ends the lease of a job that is not final, and makes it ready, scheduled or blocked."""
    job_id = change.job_id.bytes
    db.run(SQL["end_lease"], (job_id, change.claim_id))
    run_at = now + span(change.delay) if change.to is State.SCHEDULED and change.delay is not None else None
    event = None if change.wait is None else steps.gate(db, job_id, change.wait, now)
    if event is not None:
        run_at = event[1]
    error = to_json(change.errors[0]) if change.errors else None
    if change.rejected_by is not None:
        # If a breaker rejects a job repeatedly, only the last rejection is kept, however long the breaker is open.
        db.run(SQL["delete_last_rejection"], (job_id, change.rejected_by))
    db.run(
        SQL["insert_attempt"],
        (job_id, change.claim_id, held.attempt, change.outcome, held.worker_id, held.claimed_at, now, run_at, error),
    )
    if change.began:  # of a release: limits cannot tell it by its attempt from one that never began
        db.run(SQL["count_start"], (held.claimed_at, job_id, held.claimed_at))
    progress.stop_phases(db, change, phased, now)
    row = db.row(SQL["carried_by_job"], (job_id, change.attempt, change.crashes))
    assert row is not None
    if event is not None:
        placing.block_for_event(job_id, Carried(*row), *event)
        return
    placing.add(job_id, Carried(*row), run_at, held.seq if change.keep_seq else None, change.rejected_by)


def _refuse(db: Connection, job_id: UUID, claim_id: int, outcome: str, now: int) -> Refusal:
    """Why a claim that is not held is refused; records the refused attempt once, because its work is lost."""
    raw = job_id.bytes
    ended = db.value(SQL["ended_by"], (raw, claim_id))
    before = db.rows(SQL["outcomes_of_claim"], (raw, claim_id))
    recorded = {name for name, _ in before}
    if is_repeat(outcome, None if ended is None else State(ended), recorded):
        return Refusal(job_id, claim_id, RefusalReason.REPEATED)
    if REFUSED not in recorded and db.value(SQL["job_exists"], (raw,)):
        attempt = max((number for _, number in before), default=0)
        error = to_json(refused_error(outcome))
        db.run(SQL["insert_attempt"], (raw, claim_id, attempt, REFUSED, None, None, now, None, error))
    return Refusal(job_id, claim_id, RefusalReason.LOST)
