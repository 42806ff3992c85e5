"""A copy of a job has all its columns but those that are its own, without naming them."""

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core.job import NewJob, OnFailure, Unique
from dutiful.maintenance.requeue import OWN, copy_of

FULL = NewJob(
    id=UUID(int=1), kind="send", queue="mail", payload='{"n": 1}', priority=7, max_attempts=9,
    run_at=datetime(2026, 1, 1, tzinfo=UTC), delay=timedelta(1), tenant="acme", correlation_id="order 7",
    parent_id=UUID(int=2), retry_of=UUID(int=3), subject='{"order":7}', created_by="web", options='{"unique": "k"}',
    unique=Unique("k"), depends_on=(UUID(int=4),), policies=(OnFailure.RUN,), joins=UUID(int=6),
    inherits=(Unique("first"),),
)  # fmt: skip


def test_a_copy_keeps_every_column_but_its_own() -> None:
    row = msgspec.to_builtins(FULL) | {"subject": json.loads(FULL.subject or ""), "attempt": 3, "created_at": "…"}

    unique, inherits = Unique("again"), (Unique("k"),)
    copy = copy_of(row, id=UUID(int=5), payload="{}", created_by="ada", unique=unique, inherits=inherits)

    new = NewJob(UUID(int=5), "", "", payload="{}", created_by="ada", unique=unique, inherits=inherits)
    for name in NewJob.__struct_fields__:
        assert getattr(FULL, name) != getattr(NewJob(UUID(int=0), "", "", ""), name), f"give {name} a value here"
        assert getattr(copy, name) == getattr(new if name in OWN else FULL, name), name
