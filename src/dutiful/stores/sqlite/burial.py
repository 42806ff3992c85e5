"""Writes the dead letter of a job that failed for good, which outlives it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from dutiful.core.readable import read_object
from dutiful.stores.sqlite.codec import maybe_moment, maybe_uuid, moment, to_json, uuid
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL


def bury(db: Connection, job_id: bytes, errors: Sequence[dict[str, Any]], attempt: int, now: int) -> None:
    row = db.row(SQL["job_row"], (job_id,))
    assert row is not None
    (_, kind, queue, _, _, max_attempts, _, tenant, correlation_id, _, _, _, _, options, created_at) = row
    last = errors[0] if errors else {}
    db.run(
        SQL["insert_dead_letter"],
        (job_id, now, kind, queue, tenant, correlation_id or str(uuid(job_id)), _unique_key(options), created_at,
         attempt, max_attempts, *(_text(last.get(name)) for name in ("class", "type", "fingerprint", "message"))),
    )  # fmt: skip
    db.run(SQL["insert_dead_letter_body"], (job_id, _snapshot(row), to_json(errors), _history(db, job_id)))


def _unique_key(options: str | None) -> str | None:
    """Whoever inserts jobs by SQL can write anything there, and it must not keep a job from its end."""
    return _text((read_object(options) or {}).get("unique"))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _snapshot(row: Row) -> str:
    raw = msgspec.Raw
    (id_, kind, queue, payload, priority, max_attempts, run_at, tenant, correlation_id, parent_id, retry_of, subject,
     created_by, options, created_at) = row  # fmt: skip
    return to_json(
        {
            "id": uuid(id_),
            "kind": kind,
            "queue": queue,
            "payload": raw(payload.encode()),
            "priority": priority,
            "max_attempts": max_attempts,
            "run_at": maybe_moment(run_at),
            "tenant": tenant,
            "correlation_id": correlation_id,
            "parent_id": maybe_uuid(parent_id),
            "retry_of": maybe_uuid(retry_of),
            "subject": None if subject is None else raw(subject.encode()),
            "created_by": created_by,
            "options": None if options is None else raw(options.encode()),
            "created_at": maybe_moment(created_at),
        }
    )


def _history(db: Connection, job_id: bytes) -> str:
    return to_json(
        [
            {
                "job_id": uuid(job_id),
                "claim_id": claim_id,
                "attempt": attempt,
                "outcome": outcome,
                "worker_id": maybe_uuid(worker_id),
                "claimed_at": maybe_moment(claimed_at),
                "ended_at": moment(ended_at),
                "error": None if error is None else msgspec.Raw(error.encode()),
            }
            for _, claim_id, attempt, outcome, worker_id, claimed_at, ended_at, error in db.rows(
                SQL["attempts"], (job_id,)
            )
        ]
    )
