"""What a stream yields as plain data, for browsers and programs."""

from typing import Any, assert_never

import msgspec

from dutiful.core import ids
from dutiful.core.event import Event
from dutiful.core.job import JobRecord
from dutiful.watcher.items import Gap, Item, Snapshot

# Not everybody who may see how a job fares may see what it was given, or the addresses it reports to.
_KEPT_BACK = frozenset({"payload", "options"})


def plain(item: Item) -> dict[str, Any]:
    """JSON types only; each job's id in both spellings."""
    match item:
        case Event():
            fields = {"type": item.type, "public_id": ids.public(item.job_id), **msgspec.structs.asdict(item)}
        case Snapshot():
            told = {"job": _job(item.job), "phases": item.phases, "webhook_sent": item.webhook_sent}
            fields = {"type": item.type, "public_id": ids.public(item.job.id), **told}
        case Gap():
            fields = {"type": item.type, "since": item.since, "until": item.until}
        case _:
            assert_never(item)
    builtins: dict[str, Any] = msgspec.to_builtins(fields)
    return builtins


def _job(job: JobRecord) -> dict[str, Any]:
    fields = {name: value for name, value in msgspec.structs.asdict(job).items() if name not in _KEPT_BACK}
    fields["errors"] = [_brief(error) for error in job.errors or []]
    fields["last_error"] = None if job.last_error is None else _brief(job.last_error)
    return {"public_id": ids.public(job.id), **fields}


def _brief(error: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in error.items() if name != "traceback"}
