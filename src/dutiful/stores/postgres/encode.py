"""How jobs travel to Postgres: as columns for a batch, or as JSON for anything that has to be looked up."""

from collections.abc import Sequence
from typing import Any

import msgspec

from dutiful.core.job import Inserted, Insertion, NewJob

NOTIFY_LIMIT = 7_900
SHARED = (1, 2, 4, 5)  # the columns that insert_plain fills from their first value


def columns(jobs: Sequence[NewJob]) -> list[tuple[Any, ...] | None]:
    """The arguments of insert_plain, one tuple a column."""
    rows = [
        (
            j.id,
            j.kind,
            j.queue,
            j.payload,
            j.priority,
            j.max_attempts,
            j.run_at,
            j.delay,
            j.tenant,
            j.correlation_id,
            j.parent_id,
            j.retry_of,
            j.subject,
            j.created_by,
            j.options,
        )
        for j in jobs
    ]
    return [_slim(number, column) for number, column in enumerate(zip(*rows, strict=True))]


def _slim(number: int, column: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A column that nobody has is left out; kind, queue, priority and attempts are sent once if all have the same."""
    first = column[0]
    if number in SHARED:
        return column[:1] if column.count(first) == len(column) else column
    return None if first is None and column.count(None) == len(column) else column


def hint(jobs: Sequence[NewJob]) -> str:
    """What NOTIFY says: the lines that got jobs, or that there are many."""
    lines = {(job.queue, job.priority) for job in jobs}
    text = msgspec.json.encode(sorted(lines)).decode()
    return text if len(text) < NOTIFY_LIMIT else "[]"


def as_json(jobs: Sequence[NewJob]) -> str:
    """The argument of insert_jobs."""
    return msgspec.json.encode([as_object(j) for j in jobs]).decode()


def as_object(job: NewJob) -> dict[str, Any]:
    """One element of it, not yet encoded."""
    unique = job.unique
    return {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "payload": msgspec.Raw(job.payload.encode()),
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "run_at": job.run_at,
        "delay_ms": None if job.delay is None else round(job.delay.total_seconds() * 1000),
        "tenant": job.tenant,
        "correlation_id": job.correlation_id,
        "parent_id": job.parent_id,
        "retry_of": job.retry_of,
        "subject": None if job.subject is None else msgspec.Raw(job.subject.encode()),
        "created_by": job.created_by,
        "options": None if job.options is None else msgspec.Raw(job.options.encode()),
        "unique": None
        if unique is None
        else {
            "key": unique.key,
            "scope": unique.scope,
            "on_conflict": unique.on_conflict,
            "window_ms": None if unique.window is None else round(unique.window.total_seconds() * 1000),
            "across_kinds": unique.across_kinds,
        },
        "depends_on": job.depends_on,
    }


def inserted(rows: Sequence[Any]) -> list[Inserted]:
    return [Inserted(row[0], Insertion(row[1])) for row in rows]
