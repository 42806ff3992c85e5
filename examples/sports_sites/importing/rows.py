"""Translates rows of the old queues: into a job, a dead letter, or nothing if it is done."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from examples.sports_sites.jobs import ATTEMPTS


class BadRow(Exception):
    """The row cannot be interpreted; a person has to look at it."""


@dataclass(frozen=True)
class Wanted:
    """The job that replaces a row; its used attempts count."""

    type: str
    payload: dict[str, Any]
    run_at: datetime | None = None
    dedup_key: str | None = None
    spent: int = 0
    error: str | None = None  # the old queue had given it up because of this

    @property
    def max_attempts(self) -> int:
        return max(1, ATTEMPTS - self.spent)


Row = Mapping[str, Any]


def _analysis(row: Row) -> Wanted | None:
    if not _waits(row, waiting=("pending", "in-progress"), over=("done",)):
        return None
    site = row["lipas_id"]
    return Wanted("analysis", {"lipas-id": site}, dedup_key=f"analysis-{site}")


def _elevation(row: Row) -> Wanted | None:
    if not _waits(row, waiting=("pending", "in-progress", "failed"), over=("done",)):
        return None
    site, error = row["lipas_id"], None
    if row["status"] == "failed":
        error = row["last_error"] or "it had failed before it was imported"
    return Wanted(
        "elevation", {"lipas-id": site}, dedup_key=f"elevation-{site}", spent=_count(row, "retries"), error=error
    )


def _email(row: Row) -> Wanted | None:
    if _happened(row, "sent_at"):
        return None
    spent = _count(row, "attempts")
    error = row["error"] or "it had failed before it was imported"
    return Wanted(
        "email", _object(row, "message"), run_at=_due(row, "send_after"), spent=spent,
        error=error if spent >= ATTEMPTS else None,
    )  # fmt: skip


def _integration(row: Row) -> Wanted | None:
    if _happened(row, "synced_at"):
        return None
    return Wanted("integration", {"lipas-id": row["lipas_id"]})


def _webhook(row: Row) -> Wanted | None:
    if not _waits(row, waiting=("new", "sending", "dead"), over=("sent",)):
        return None
    error = (row["last_error"] or "it had failed before it was imported") if row["status"] == "dead" else None
    return Wanted("webhook", _object(row, "batch"), error=error)


# In this order: what other jobs depend on comes first.
READERS: Mapping[str, Callable[[Row], Wanted | None]] = {
    "analysis_queue": _analysis,
    "elevation_queue": _elevation,
    "email_out_queue": _email,
    "integration_out_queue": _integration,
    "webhook_queue": _webhook,
}


def _waits(row: Row, waiting: tuple[str, ...], over: tuple[str, ...]) -> bool:
    """Whether the row is still to be done; a started one is, because the old workers were stopped."""
    if row["status"] not in (*waiting, *over):
        raise BadRow(f"status {row['status']!r} is none of {', '.join((*waiting, *over))}")
    return row["status"] in waiting


def _count(row: Row, name: str) -> int:
    value = row[name]
    if not isinstance(value, int) or value < 0:
        raise BadRow(f"{name} is {value!r}: it must be a number from 0")
    return value


def _object(row: Row, name: str) -> dict[str, Any]:
    try:
        value = json.loads(row[name])
    except (TypeError, ValueError):
        raise BadRow(f"{name} is not JSON") from None
    if not isinstance(value, dict):
        raise BadRow(f"{name} is not an object")
    return value


def _happened(row: Row, name: str) -> bool:
    return _moment(row, name) is not None


def _due(row: Row, name: str) -> datetime | None:
    found = _moment(row, name)
    if found is not None and found.tzinfo is None:
        raise BadRow(f"{name} {row[name]!r} has no time zone")
    return found


def _moment(row: Row, name: str) -> datetime | None:
    """A time, which SQLite has as text."""
    value = row[name]
    if value is None or isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise BadRow(f"{name} {value!r} is not a time") from None
