"""Writes the dead letter of a permanently failed job, in the transaction that fails it."""

from collections.abc import Sequence
from typing import Any

from dutiful.core.json import read_object
from dutiful.stores.sqlite.engine import SQL, Connection
from dutiful.stores.sqlite.engine.codec import to_json, uuid
from dutiful.stores.sqlite.engine.columns import ATTEMPT, JOB, RAW, TEXT, TEXT_OBJECT, Columns

_SNAPSHOT: Columns[dict[str, Any]] = Columns(
    dict, **{name: RAW if codec in (TEXT, TEXT_OBJECT) else codec for name, codec in JOB.items()}
)


def write(db: Connection, job_id: bytes, errors: Sequence[dict[str, Any]], attempt: int, now: int) -> None:
    row = db.row(SQL["job_row"], (job_id,))
    assert row is not None
    job = dict(zip(JOB, row, strict=True))
    last = errors[0] if errors else {}
    db.run(
        SQL["insert_dead_letter"],
        (job_id, now, job["kind"], job["queue"], job["tenant"], job["correlation_id"] or str(uuid(job_id)),
         _unique_key(job["options"]), job["created_at"], attempt, job["max_attempts"],
         *(_text(last.get(name)) for name in ("class", "type", "fingerprint", "message"))),
    )  # fmt: skip
    history = to_json([ATTEMPT.decode(row) for row in db.rows(SQL["attempts"], (job_id,))])
    db.run(SQL["insert_dead_letter_body"], (job_id, to_json(_SNAPSHOT.decode(row)), to_json(errors), history))


def _unique_key(options: str | None) -> str | None:
    """The job's unique key; None if it cannot be read, because a job inserted by SQL may have anything there."""
    return _text((read_object(options) or {}).get("unique"))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
