"""The columns passed between Python and the functions of schema/, each list written once.

SQL files name a list in braces: a function's parameters, its `unnest`, the `$1, $2, …` of the statement that calls it.
Values are taken from objects by the columns' names, in the same order. Statements name the columns that they read,
because a later release may add columns to a view or table while this one still runs.
"""

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any

import msgspec

from dutiful.core.job import AttemptRecord, Claim, Inserted, Insertion, JobRecord, NewJob, PhaseRecord, Unique
from dutiful.core.metrics.alert import Alert
from dutiful.core.review.audit import AuditEvent
from dutiful.core.settle import Change
from dutiful.payload.sql_rules import KindDefault, PayloadRule
from dutiful.store.jobs import Levels
from dutiful.store.metrics import AttemptStats
from dutiful.store.schedules import ScheduleRecord
from dutiful.store.tokens import ApiToken
from dutiful.store.webhooks import WebhookPost


class Column(msgspec.Struct, frozen=True):
    """A column of a table or result, and the field of the same name."""

    name: str
    type: str
    shared: bool = False
    """Sent once if all rows of a batch have the same value; such a column is never null."""
    json: str = ""
    """How to read it from an object `v` of insert_jobs, if not by its type. Includes the column's default, because
    callers in SQL and of older releases do not send the column."""

    @property
    def sent(self) -> str:
        return "text" if self.type == "jsonb" else self.type

    @property
    def parameter(self) -> str:
        return f"p_{self.name} {self.sent}[]"

    @property
    def parameter_of_one(self) -> str:
        """The parameter of a function that takes one row."""
        return f"p_{self.name} {self.type}"

    @property
    def value(self) -> str:
        """The value in a row `a` of the unnested parameters."""
        if self.shared:
            return f"coalesce(a.{self.name}, p_{self.name}[1])"
        return f"a.{self.name}" if self.sent == self.type else f"a.{self.name}::{self.type}"

    @property
    def read(self) -> str:
        if self.json or self.type == "jsonb":
            return self.json or f"nullif(v -> '{self.name}', 'null')"
        return f"v ->> '{self.name}'" if self.type == "text" else f"(v ->> '{self.name}')::{self.type}"


Columns = Sequence[Column]

# Fields of NewJob that are stored in table job as they are. When a job is due is computed from run_at or delay.
JOB: Columns = (
    Column("id", "uuid"),
    Column("kind", "text", shared=True),
    Column("queue", "text", shared=True, json="coalesce(v ->> 'queue', 'default')"),
    Column("payload", "jsonb", json="coalesce(v -> 'payload', '{}')"),
    Column("priority", "int", shared=True, json="coalesce((v ->> 'priority')::int, 100)"),
    Column("max_attempts", "int", shared=True, json="coalesce((v ->> 'max_attempts')::int, 5)"),
    Column("tenant", "text"),
    Column("correlation_id", "text"),
    Column("parent_id", "uuid"),
    Column("retry_of", "uuid"),
    Column("subject", "jsonb"),
    Column("created_by", "text"),
    Column("options", "jsonb"),
)
TIMES: Columns = (Column("run_at", "timestamptz"), Column("delay", "interval"))
# The fields of Claim: first those of its lease, then those of its job, and `waited`, which is computed.
LEASE: Columns = (
    Column("job_id", "uuid"),
    Column("claim_id", "bigint"),
    Column("attempt", "int"),
    Column("crashes", "int"),
    Column("seq", "bigint"),
)
CLAIMED_JOB: Columns = tuple(c for c in JOB if c.name in Claim.__struct_fields__)
# The fields of HeldClaim, for the rescuer and the operator.
HELD: Columns = (
    *LEASE[:4],
    Column("kind", "text"),
    Column("worker_id", "uuid"),
    Column("cancel_requested", "boolean"),
    Column("tenant", "text"),
    Column("correlation_id", "text"),
)
# The fields of Change.
CHANGE: Columns = (
    Column("job_id", "uuid"),
    Column("claim_id", "bigint"),
    Column("to", "text"),
    Column("outcome", "text"),
    Column("attempt", "int"),
    Column("crashes", "int"),
    Column("delay", "interval"),
    Column("result", "jsonb"),
    Column("errors", "jsonb"),
    Column("keep_seq", "boolean"),
    Column("phase_to", "text"),
    Column("wait", "text"),
    Column("began", "boolean"),
)

# What is copied when a job moves from one place to the next. SQL writes `{carried_new of m}` for the values of a job
# that is inserted: columns of its row `m`, and no attempts yet.
CARRIED = ("priority", "attempt", "crashes", "queue", "kind", "tenant")
_NEW = {"attempt": "0", "crashes": "0"}
_CARRIED_NEW = re.compile(r"\{carried_new of ([a-z]+)\}")
ROUTE: dict[str, Column] = {c.name: c for c in JOB if c.name in CARRIED}


def _without(left_out: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """The names, with nothing in place of some: a value that is not named is neither decompressed nor sent."""
    return tuple(f"null::jsonb as {name}" if name in left_out else name for name in names)


def _small(names: Sequence[str]) -> Sequence[str]:
    """The names, with no result if it is larger than the parameter p_largest."""
    small = "case when not {schema}.is_larger(result, p_largest) then result end as result"
    return tuple(small if name == "result" else name for name in names)


# Plain lists of names. SQL writes `{post}` for the names, and `{post of p}` for them as columns of `p`.
LISTS: dict[str, Sequence[str]] = {
    "carried": CARRIED,
    "route": tuple(ROUTE),
    "record": JobRecord.__struct_fields__,
    "attempts": AttemptRecord.__struct_fields__,
    "summary": _without(("payload", "result", "subject"), JobRecord.__struct_fields__),
    "viewed": _small(_without(("payload",), JobRecord.__struct_fields__)),
    "viewed_phase": _small(PhaseRecord.__struct_fields__),
    "stats": AttemptStats.__struct_fields__,
    "alert": Alert.__struct_fields__,
    "audit": AuditEvent.__struct_fields__,
    "post": WebhookPost.__struct_fields__,
    "token": ApiToken.__struct_fields__,
    "rule": PayloadRule.__struct_fields__,
    "default": KindDefault.__struct_fields__,
    "schedule": ScheduleRecord.__struct_fields__,
    "breaker": (
        "name", "version", "state", "failures", "successes", "neutral", "round", "trips", "failures_allowed",
        "open_for", "probes", "last_failure_at", "opened_at", "open_until", "half_opened_at", "updated_at",
    ),
}  # fmt: skip
_LIST = re.compile(rf"\{{({'|'.join(LISTS)})(?: of ([a-z.()]+))?\}}")


def _parameters(columns: Columns) -> str:
    return ", ".join(c.parameter for c in columns)


def _unnested(columns: Columns) -> str:
    arrays, names = ", ".join(f"p_{c.name}" for c in columns), ", ".join(f'"{c.name}"' for c in columns)
    return f"unnest({arrays}) as a ({names})"


def _names(columns: Columns, table: str = "") -> str:
    return ", ".join(f"{table}.{c.name}" if table else c.name for c in columns)


def _plain(columns: Columns, table: str) -> str:
    """The columns of table job as a function returns them: without their domains."""
    return ", ".join(f"{table}.{c.name}::{c.type}" for c in columns)


def _types(columns: Columns) -> str:
    return ", ".join(f"{c.name} {c.type}" for c in columns)


FRAGMENTS = {
    "job_columns": _names(JOB),
    "job_values": ", ".join(c.value for c in JOB),
    "job_values_of_json": ", ".join(c.read for c in JOB),
    "job_parameters": _parameters((*JOB, *TIMES)),
    "jobs_given": _unnested(JOB),
    "routes_given": _unnested((JOB[0], *ROUTE.values())),
    "carried_values": ", ".join(_NEW.get(name) or ROUTE[name].value for name in CARRIED),
    "one_job_parameters": ", ".join(c.parameter_of_one for c in (*JOB, *TIMES)),
    "one_job_values": ", ".join(f"p_{c.name}" for c in JOB),
    "one_carried": ", ".join(_NEW.get(name, f"p_{name}") for name in CARRIED),
    "jobs_given_with_times": _unnested((*JOB, *TIMES)),
    "job_numbers_from_3": ", ".join(f"${n}" for n, _ in enumerate((*JOB, *TIMES), start=3)),
    "claim_columns": f"{_names((*LEASE, *CLAIMED_JOB))}, waited",
    "claim_types": f"{_types((*LEASE, *CLAIMED_JOB))}, waited double precision",
    "claim_values": f"{_names(LEASE, 'l')}, {_plain(CLAIMED_JOB, 'j')}",
    "held_columns": _names(HELD),
    "held_types": _types(HELD),
    "change_parameters": _parameters(CHANGE),
    "changes_given": _unnested(CHANGE),
}


def spell_lists(sql: str) -> str:
    """`sql` with the names of LISTS in place of each `{list}` and `{list of alias}`."""
    sql = _CARRIED_NEW.sub(lambda m: ", ".join(_NEW.get(name, f"{m[1]}.{name}") for name in CARRIED), sql)
    return _LIST.sub(lambda m: ", ".join(f"{m[2]}.{name}" if m[2] else name for name in LISTS[m[1]]), sql)


job_values: Callable[[NewJob], tuple[Any, ...]] = attrgetter(*(c.name for c in (*JOB, *TIMES)))
"""The values of `{one_job_parameters}`."""


# Of NewJob, those that are columns. Python keeps small tuples for reuse; longer ones, one for each job of a bulk, are
# garbage to be collected, which took a tenth of the client's time.
MOST_FIELDS = 1 + max(NewJob.__struct_fields__.index(column.name) for column in (*JOB, *TIMES))


def job_arrays(jobs: Sequence[NewJob]) -> list[tuple[Any, ...] | None]:
    """The values of `{job_parameters}`: a column that no job has is left out, a shared one is sent once."""
    given = _by_field(jobs, MOST_FIELDS)
    return [_slim(column, given[column.name]) for column in (*JOB, *TIMES)]


def _slim(column: Column, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    first = values[0]
    if column.shared:
        return values[:1] if values.count(first) == len(values) else values
    return None if first is None and values.count(None) == len(values) else values


def change_arrays(changes: Sequence[Change]) -> list[tuple[Any, ...]]:
    """The values of `{change_parameters}`; states are texts."""
    given = _by_field(changes)
    given["errors"] = tuple(msgspec.json.encode(e).decode() if e else None for e in given["errors"])
    given["wait"] = tuple(msgspec.json.encode(w).decode() if w else None for w in given["wait"])
    return [given[column.name] for column in CHANGE]


def _by_field(rows: Sequence[msgspec.Struct], most: int | None = None) -> dict[str, tuple[Any, ...]]:
    """The values of the fields, of the first so many."""
    # astuple takes a third of the time of reading each field by name.
    columns = zip(*(msgspec.structs.astuple(row)[:most] for row in rows), strict=True)
    return dict(zip(rows[0].__struct_fields__[:most], columns, strict=True))


NOTIFY_LIMIT = 7_900


def hint(levels: Levels) -> str:
    """The payload of NOTIFY: the queue levels to look at, or an empty list for any."""
    text = msgspec.json.encode(sorted(levels)).decode()
    return text if len(text) < NOTIFY_LIMIT else "[]"


def as_json(jobs: Sequence[NewJob]) -> str:
    """The argument of insert_jobs."""
    return msgspec.json.encode([as_object(j) for j in jobs]).decode()


def as_object(job: NewJob) -> dict[str, Any]:
    """One element of it, not yet encoded."""
    found: dict[str, Any] = {
        c.name: msgspec.Raw(value.encode()) if c.type == "jsonb" and value is not None else value
        for c, value in ((c, getattr(job, c.name)) for c in JOB)
    }
    found["run_at"] = job.run_at
    found["delay_ms"] = _milliseconds(job.delay)
    if job.depends_on:
        found["depends_on"] = job.depends_on
    if job.joins is not None:
        found["joins"] = job.joins
    if job.policies:
        found["policies"] = job.policies
    if job.unique is not None:
        found["unique"] = _unique(job.unique)
    if job.inherits:
        found["inherits"] = [_unique(key) for key in job.inherits]
    return found


def _unique(unique: Unique) -> dict[str, Any]:
    return {
        "key": unique.key,
        "scope": unique.scope,
        "on_conflict": unique.on_conflict,
        "window_ms": _milliseconds(unique.window),
        "across_kinds": unique.across_kinds,
    }


def _milliseconds(length: timedelta | None) -> int | None:
    return None if length is None else round(length.total_seconds() * 1000)


def inserted(rows: Sequence[Any]) -> list[Inserted]:
    return [Inserted(row[0], Insertion(row[1])) for row in rows]
