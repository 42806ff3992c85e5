"""The columns of every table, listed once; select lists, encoders and decoders are made from them."""

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from dutiful.core.breaker.state import Breaker, BreakerState
from dutiful.core.job import AttemptRecord, Claim, HeldClaim, JobRecord, NewJob, PhaseRecord, PhaseState, Progress
from dutiful.core.json import read, read_as, read_object
from dutiful.core.metrics.alert import Alert, AlertState
from dutiful.core.metrics.sketch import Sketch
from dutiful.core.principal import Origin, Role
from dutiful.core.review.audit import AuditEvent, AuditOutcome, enum_or_text
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.core.steps import StepKind, StepRecord, StepState
from dutiful.store.dead_letters import BulkRun, BulkState, DeadLetter, DeadLetterFilter
from dutiful.store.metrics import AttemptStats
from dutiful.store.schedules import ScheduleRecord
from dutiful.store.tokens import ApiToken
from dutiful.store.webhooks import PostState, WebhookPost, WebhookRecord
from dutiful.store.workers import LaneRecord, WorkerRecord
from dutiful.stores.sqlite.engine.codec import checked, micros, moment, to_json, uuid

T = TypeVar("T")


class Codec(NamedTuple):
    """How a column's value is written and read; NULL is always None."""

    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None


PLAIN = Codec()
ID = Codec(attrgetter("bytes"), uuid)
TIME = Codec(micros, moment)
BOOL = Codec(int, bool)
JSON = Codec(to_json, read)
OBJECT = Codec(to_json, read_object)
TEXT = Codec(checked, read)  # JSON that the record has as text before it is stored
TEXT_OBJECT = Codec(checked, read_object)
RAW = Codec(decode=lambda text: msgspec.Raw(text.encode()))  # JSON that becomes part of other JSON
PROGRESS = Codec(to_json, partial(read_as, msgspec.json.Decoder(Progress)))
SKETCH = Codec(to_json, msgspec.json.Decoder(Sketch).decode)


def one_of(decode: Callable[[str], Any]) -> Codec:
    """The codec of an enumeration."""
    return Codec(attrgetter("value"), decode)


class Columns(Generic[T]):
    """The columns of a record, each named like its field.

    `encode` and `decode` are generated code: they run once per row, and a loop over the columns takes twice as long.
    """

    def __init__(self, record: type[T], **codecs: Codec) -> None:
        self.codecs = codecs
        known: dict[str, Any] = {"record": record}
        known |= {f"encode_{name}": codec.encode for name, codec in codecs.items()}
        known |= {f"decode_{name}": codec.decode for name, codec in codecs.items()}
        encoded = [_apply(codec.encode, f"encode_{name}", f"one.{name}") for name, codec in codecs.items()]
        decoded = [
            f"{name}={_apply(codec.decode, f'decode_{name}', f'row[{at}]')}"
            for at, (name, codec) in enumerate(codecs.items())
        ]
        self.encode: Callable[[T], tuple[Any, ...]] = eval(f"lambda one: ({', '.join(encoded)},)", known)
        self.decode: Callable[..., T] = eval(f"lambda row, **more: record({', '.join(decoded)}, **more)", known)

    def __len__(self) -> int:
        return len(self.codecs)


def _apply(function: Callable[[Any], Any] | None, name: str, value: str) -> str:
    return value if function is None else f"None if {value} is None else {name}({value})"


# Jobs. A column that a NewJob, a Claim or a JobRecord has as a field is stored and read without being named elsewhere.

JOB: Mapping[str, Codec] = {
    "id": ID,
    "kind": PLAIN,
    "queue": PLAIN,
    "payload": TEXT,
    "priority": PLAIN,
    "max_attempts": PLAIN,
    "run_at": TIME,
    "tenant": PLAIN,
    "correlation_id": PLAIN,
    "parent_id": ID,
    "retry_of": ID,
    "subject": TEXT_OBJECT,
    "created_by": PLAIN,
    "options": TEXT_OBJECT,
    "created_at": TIME,
}

# Not run_at, which is when the job is due and may depend on its place, and correlation_id, which has a default.
_RECORD = [name for name in JOB if name in JobRecord.__struct_fields__ and name not in ("run_at", "correlation_id")]
RECORD = {name: JOB[name] for name in _RECORD}

_CLAIM_EXPRESSIONS = {
    "job_id": "r.job_id",
    "claim_id": "0",  # assigned after the jobs were picked
    "attempt": "r.attempt + 1",
    "crashes": "r.crashes",
    "seq": "r.seq",
    "queue": "r.queue",
    "priority": "r.priority",
    "waited": "max(:now - max(j.created_at, coalesce(j.run_at, 0)), 0) / 1e6",
}


def job_encoder(due: Callable[[NewJob, int], int]) -> Callable[[NewJob, int], tuple[Any, ...]]:
    """Returns a function that makes a row of dutiful_job from a NewJob and the time."""
    values = {name: _apply(codec.encode, f"encode_{name}", f"job.{name}") for name, codec in JOB.items()}
    values["run_at"] = "None if job.run_at is None and job.delay is None else due(job, now)"
    values["created_at"] = "now"
    known = {"due": due, **{f"encode_{name}": codec.encode for name, codec in JOB.items()}}
    encode: Callable[[NewJob, int], tuple[Any, ...]] = eval(f"lambda job, now: ({', '.join(values.values())})", known)
    return encode


# Places. Each row is bound and read in the order of its fields, and named nowhere else.


class Route(msgspec.Struct):
    """The fields of a job's own row that are repeated in every place."""

    queue: str
    priority: int
    kind: str
    tenant: str | None


class Carried(Route):
    """The fields that are copied when a job moves from one place to the next."""

    attempt: int
    crashes: int


PlaceRow = TypeVar("PlaceRow", bound=Carried)


class ReadyRow(Carried):
    job_id: bytes
    seq: int


class ScheduledRow(Carried):
    job_id: bytes
    run_at: int


class BlockedRow(Carried):
    job_id: bytes
    gate: str
    key: str | None
    run_at: int | None
    since: int
    seq: int | None


class FinishedRow(msgspec.Struct):
    job_id: bytes
    claim_id: int | None
    state: str
    attempt: int
    crashes: int
    worker_id: bytes | None
    claimed_at: int | None
    finished_at: int
    result: str | None
    errors: str | None


class LeaseRow(msgspec.Struct):
    """The fields of a lease that are read before its claim is settled."""

    attempt: int
    crashes: int
    worker_id: bytes
    claimed_at: int
    seq: int
    expires_at: int
    cancel_requested_at: int | None
    cancel_reason: str | None


_ROWS: Mapping[str, type[msgspec.Struct]] = {
    "route": Route,
    "carried": Carried,
    "ready": ReadyRow,
    "scheduled": ScheduledRow,
    "blocked": BlockedRow,
    "finished": FinishedRow,
    "held_lease": LeaseRow,
}
_NEW = {"attempt": "0", "crashes": "0"}


def carried_by_new() -> Callable[[NewJob], Carried]:
    """Returns a function that makes what a job carries from a NewJob."""
    values = ", ".join(f"{name}={_NEW.get(name, f'job.{name}')}" for name in Carried.__struct_fields__)
    carried: Callable[[NewJob], Carried] = eval(f"lambda job: Carried({values})", {"Carried": Carried})
    return carried


def row_maker(row: type[PlaceRow]) -> Callable[..., PlaceRow]:
    """Returns a function that makes a place's row from what a job carries and, by name, the row's other fields."""
    carried = Carried.__struct_fields__
    own = ", ".join(name for name in row.__struct_fields__ if name not in carried)
    values = ", ".join(f"carried.{name}" if name in carried else name for name in row.__struct_fields__)
    make: Callable[..., PlaceRow] = eval(f"lambda carried, *, {own}: row({values})", {"row": row})
    return make


def new_ready_encoder() -> Callable[[NewJob, bytes, int], tuple[Any, ...]]:
    """Returns a function that makes a row of dutiful_ready from a NewJob, its id and its seq."""
    values = ", ".join(_NEW.get(name, f"job.{name}" if name in JOB else name) for name in ReadyRow.__struct_fields__)
    encode: Callable[[NewJob, bytes, int], tuple[Any, ...]] = eval(f"lambda job, job_id, seq: ({values})")
    return encode


def claim_decoder() -> Callable[[tuple[Any, ...], int], Claim]:
    """Returns a function that makes a Claim from a row of `claim_columns` and the claim's number; JSON stays text."""
    values = []
    for at, name in enumerate(Claim.__struct_fields__):
        is_id = name == "job_id" or JOB.get(name) is ID
        values.append("claim_id" if name == "claim_id" else _apply(uuid if is_id else None, "uuid", f"row[{at}]"))
    known = {"Claim": Claim, "uuid": uuid}
    decode: Callable[[tuple[Any, ...], int], Claim] = eval(f"lambda row, claim_id: Claim({', '.join(values)})", known)
    return decode


# The other tables.

ATTEMPT = Columns(
    AttemptRecord, job_id=ID, claim_id=PLAIN, attempt=PLAIN, outcome=PLAIN, worker_id=ID, claimed_at=TIME,
    ended_at=TIME, error=OBJECT,
)  # fmt: skip

PHASE = Columns(
    PhaseRecord, name=PLAIN, position=PLAIN, state=one_of(PhaseState), attempt=PLAIN, started_at=TIME, ended_at=TIME,
    result=JSON, error=OBJECT, progress=PROGRESS,
)  # fmt: skip

STEP = Columns(
    StepRecord, name=PLAIN, position=PLAIN, kind=one_of(StepKind), state=one_of(StepState), code=PLAIN,
    fingerprint=PLAIN, started_at=TIME, ended_at=TIME, due_at=TIME, event=PLAIN, key=PLAIN, result=JSON,
)  # fmt: skip

HELD_CLAIM = Columns(
    HeldClaim, job_id=ID, claim_id=PLAIN, attempt=PLAIN, crashes=PLAIN, kind=PLAIN, worker_id=ID, cancel_requested=BOOL,
    tenant=PLAIN, correlation_id=PLAIN,
)  # fmt: skip

DEAD_LETTER = Columns(
    DeadLetter, status=one_of(ReviewState), died_at=TIME, kind=PLAIN, queue=PLAIN, tenant=PLAIN, correlation_id=PLAIN,
    unique_key=PLAIN, created_at=TIME, attempt=PLAIN, max_attempts=PLAIN, error_class=PLAIN, error_type=PLAIN,
    fingerprint=PLAIN, message=PLAIN, reviewed_by=PLAIN, reviewed_at=TIME, acknowledged_by=PLAIN, acknowledged_at=TIME,
    new_job_id=ID, resolution=PLAIN, notes=PLAIN,
)  # fmt: skip

BULK_RUN = Columns(
    BulkRun, id=ID, act=one_of(ReviewAct), filter=Codec(to_json, msgspec.json.Decoder(DeadLetterFilter).decode),
    by=PLAIN, role=PLAIN, origin=PLAIN, reason=PLAIN, created_at=TIME, total=PLAIN, done=PLAIN, skipped=PLAIN,
    state=one_of(BulkState), ended_at=TIME,
)  # fmt: skip

AUDIT_EVENT = Columns(
    AuditEvent, id=ID, act=ID, at=TIME, principal=PLAIN, role=one_of(partial(enum_or_text, Role)),
    origin=one_of(partial(enum_or_text, Origin)), action=PLAIN, outcome=one_of(partial(enum_or_text, AuditOutcome)),
    target=PLAIN, tenant=PLAIN, reason=PLAIN, before=JSON, after=JSON, address=PLAIN,
)  # fmt: skip

WORKER = Columns(
    WorkerRecord, id=ID, name=PLAIN, host=PLAIN, pid=PLAIN, started_at=TIME, seen_at=TIME, leading=BOOL,
    lanes=Codec(to_json, partial(read_as, msgspec.json.Decoder(dict[str, LaneRecord]))), kinds=JSON,
    locks=PLAIN,
)  # fmt: skip

SCHEDULE = Columns(
    ScheduleRecord, name=PLAIN, kind=PLAIN, expression=PLAIN, timezone=PLAIN, catch_up=PLAIN, job=JSON, next_at=TIME,
    last_at=TIME, last_job_id=ID, enabled=BOOL,
)  # fmt: skip

WEBHOOK = Columns(
    WebhookRecord, name=PLAIN, url=PLAIN, kinds=JSON, states=JSON, alerts=BOOL, enabled=BOOL, disabled_at=TIME,
    reason=PLAIN,
)  # fmt: skip

POST = Columns(
    WebhookPost, id=ID, job_id=ID, webhook=PLAIN, url=PLAIN, event=PLAIN, data=OBJECT, state=one_of(PostState),
    attempts=PLAIN, created_at=TIME, next_at=TIME, ended_at=TIME, updated_at=TIME, status=PLAIN, error=PLAIN,
    tenant=PLAIN,
)  # fmt: skip

COUNTER = Columns(
    AttemptStats, kind=PLAIN, outcome=PLAIN, count=PLAIN, run=SKETCH, wait=SKETCH, run_microseconds=PLAIN,
    wait_microseconds=PLAIN, payload_bytes=PLAIN, payload_most=PLAIN,
)  # fmt: skip

BREAKER = Columns(
    Breaker, name=PLAIN, state=one_of(BreakerState), failures=PLAIN, successes=PLAIN, neutral=PLAIN, round=PLAIN,
    trips=PLAIN, last_failure_at=TIME, opened_at=TIME, open_until=TIME, half_opened_at=TIME,
)  # fmt: skip

ALERT = Columns(
    Alert, rule=PLAIN, series=PLAIN, state=one_of(AlertState), value=PLAIN, since=TIME, calm_since=TIME, fired_at=TIME,
    cleared_at=TIME, summary=PLAIN,
)  # fmt: skip

TOKEN = Columns(
    ApiToken, id=ID, name=PLAIN, role=one_of(Role), tenant=PLAIN, created_at=TIME, created_by=PLAIN, expires_at=TIME,
    revoked_at=TIME, last_used_at=TIME,
)  # fmt: skip


def _lists() -> dict[str, str]:
    lists = {
        "claim_columns": ", ".join(_CLAIM_EXPRESSIONS.get(name, f"j.{name}") for name in Claim.__struct_fields__),
        "record_columns": ", ".join(f"j.{name}" for name in RECORD),
    }
    tables = {name.lower(): one.codecs for name, one in globals().items() if isinstance(one, Columns)}
    for table, codecs in {"job": JOB, **tables}.items():
        lists[f"{table}_columns"] = ", ".join(codecs)
        lists[f"{table}_values"] = ", ".join("?" for _ in codecs)
    for table, row in _ROWS.items():
        lists[f"{table}_columns"] = ", ".join(row.__struct_fields__)
        lists[f"{table}_values"] = ", ".join("?" for _ in row.__struct_fields__)
    return lists


COLUMN_LISTS = _lists()
"""The lists that statements name in braces: `token_columns` are TOKEN's columns, `token_values` its parameters."""
