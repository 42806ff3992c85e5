"""Makes a new job of an ended one, or of a dead letter; it takes over the unique key, so that only one of them runs."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.errors import PayloadInvalid, UsageError
from dutiful.core.job import JobRecord, NewJob, OnConflict, Unique
from dutiful.core.json import check_whole
from dutiful.core.rules.rules import Rules
from dutiful.core.sealed import ORIGIN, is_sealed, origin
from dutiful.kind import Kind
from dutiful.payload.validator import UNBOUNDED, Checked, problems
from dutiful.store.dead_letters import DeadLetter

KEY_LIMIT = 500
NO_RULES = Rules(limit=UNBOUNDED)  # the app's own limit has been checked by then
FIRST = "unique_first"  # the option with the key of the job that was reprocessed first
_MILLISECOND = timedelta(milliseconds=1)

# What a copy has of its own: who asked for it and when, its key, and what callers may change. All else is copied.
OWN = frozenset(
    (
        "id",
        "payload",
        "options",
        "run_at",
        "delay",
        "retry_of",
        "created_by",
        "unique",
        "depends_on",
        "policies",
        "joins",
        "inherits",
    )
)

Kinds = Mapping[str, Kind[Any, Any]]


def copy_of(
    row: Mapping[str, Any], *, unique: Unique | None = None, inherits: tuple[Unique, ...] = (), **own: Any
) -> NewJob:
    """Returns a job like an earlier one, whose stored columns are `row`; `own` replaces columns, JSON by its text."""
    kept = {name: _stored(name, row[name]) for name in NewJob.__struct_fields__ if name in row and name not in OWN}
    return msgspec.structs.replace(msgspec.convert({**kept, **own}, NewJob), unique=unique, inherits=inherits)


def run_again(record: JobRecord, *, id: UUID, by: str, kinds: Kinds) -> NewJob:
    """Returns the job that runs an ended one again, with its key, or none."""
    options, key = record.options or {}, key_of(record.options)
    # Of a job without a key, or whose key does not last as long as it runs, a double click still makes one copy only.
    inherits = [Unique(f"retry of {record.id}")]
    if key is not None:
        inherits += [_unique(kinds.get(record.kind), one, options) for one in sorted({key, first_key(key, options)})]
    if is_sealed(record.payload):
        options = {**options, ORIGIN: origin(options, record.id)}
    return copy_of(
        msgspec.structs.asdict(record),
        id=id,
        payload=json_text(record.payload) or "{}",
        retry_of=record.id,
        created_by=by,
        options=json_text(options or None),
        inherits=tuple(inherits),
    )


def key_of(options: Mapping[str, Any] | None) -> str | None:
    """The unique key that a job's options show."""
    key = (options or {}).get("unique")
    return key if isinstance(key, str) else None


def first_key(key: str, options: Mapping[str, Any]) -> str:
    """The key of the job that was reprocessed first. Each job that replaces it holds this key as well as its own."""
    first = options.get(FIRST)
    return first if isinstance(first, str) else key


def _stored(name: str, value: Any) -> Any:
    """JSON as text; a subject written by SQL may be any JSON."""
    return json_text(value) if name == "subject" or isinstance(value, dict | list) else value


def new_job(
    letter: DeadLetter,
    *,
    id: UUID,
    by: str,
    at: datetime,
    kinds: Kinds,
    payload: Any = None,
    taken: Collection[str] = (),
) -> NewJob:
    """Returns the job that replaces `letter`; `payload` replaces its own, `taken` are unique keys already given.

    Raises PayloadInvalid for a dead letter that cannot become a job.
    """
    asked, kind = letter.job, kinds.get(letter.kind)
    if "priority" not in asked:
        raise PayloadInvalid("what was kept of the job cannot be read by Python, so it cannot be sent again", "job")
    options = dict(asked.get("options") or {})
    body = letter.payload if payload is None else payload
    sealed = payload is None and is_sealed(body)  # then it stays sealed, so that this process needs no key
    if sealed:
        options[ORIGIN] = origin(options, letter.id)
    else:
        options.pop(ORIGIN, None)
    unique: Unique | None = None
    inherits: tuple[Unique, ...] = ()
    if letter.unique_key is not None:
        first = first_key(letter.unique_key, options)
        key = retry_key(letter.unique_key, first, at, taken)
        unique = _unique(kind, key, options)
        inherits = (_unique(kind, first, options),)
        options |= {"unique": key, FIRST: first}
        body = _rekeyed(body, kind, options, key)
    checked = None if sealed else _checked(letter, body, kind, edited=payload is not None)
    if checked is not None:
        if payload is not None:
            body = msgspec.json.decode(checked.text)
        if unique is None and checked.unique is not None:
            # It failed before its kind had rules; they apply now.
            unique = msgspec.structs.replace(checked.unique, on_conflict=OnConflict.REJECT)
            options |= unique.as_options()
    job = copy_of(
        asked,
        id=id,
        payload=json_text(body) or "{}",
        correlation_id=letter.correlation_id,
        retry_of=letter.id,
        created_by=by,
        options=json_text(options or None),
        unique=unique,
        inherits=inherits,
    )
    if kind is not None and kind.limits and payload is not None:
        job = kind.with_limit_keys(job)  # those of the new payload
    try:
        return job if kind is None else kind.seal(job)
    except UsageError as error:
        raise PayloadInvalid(str(error), "payload") from None


def retry_key(key: str, first: str, at: datetime, taken: Collection[str] = ()) -> str:
    """Returns the old key with the time, to the millisecond; a later time if that key is taken."""
    while (new := _timed(key, first, at)) in taken:
        at += _MILLISECOND
    return new


def _timed(key: str, first: str, at: datetime) -> str:
    suffix = f"_retry_{at.timestamp():.3f}"
    if len(key) + len(suffix) > KEY_LIMIT:
        key = first[: KEY_LIMIT - len(suffix)]  # after many retries, only the last time is kept
    return key + suffix


def changed_fields(old: Any, new: Any, path: str = "payload") -> list[str]:
    """Returns the paths where two payloads differ, never the values; of a sealed one, only that it does."""
    if is_sealed(old) or is_sealed(new):
        return [path]
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        return [
            found
            for name in names
            for found in (
                changed_fields(old[name], new[name], f"{path}.{name}")
                if name in old and name in new
                else [f"{path}.{name}"]
            )
        ]
    return [] if type(old) is type(new) and old == new else [path]


def json_text(value: Any) -> str | None:
    return None if value is None else check_whole(msgspec.json.encode(value).decode(), "job")


def _unique(kind: Kind[Any, Any] | None, key: str, options: Mapping[str, Any]) -> Unique:
    """The key as the old job held it, or as the kind declares it; on a conflict, two dead letters never share a job."""
    held = Unique(key)
    if (kept := Unique.of_options(key, options)) is not None:
        held = kept
    elif kind is not None and kind.rules is not None and kind.rules.unique_field is not None:
        held = kind.rules.unique_for(key)
    elif kind is not None and kind._defaults.unique is not None:
        held = kind._defaults.unique
    return msgspec.structs.replace(held, key=key, on_conflict=OnConflict.REJECT)


def _rekeyed(payload: Any, kind: Kind[Any, Any] | None, options: Mapping[str, Any], key: str) -> Any:
    """Puts the new key where the old one came from; a payload of an older version may not have that field."""
    field = kind.rules.unique_field if kind is not None and kind.rules is not None else options.get("unique_field")
    return {**payload, field: key} if isinstance(payload, Mapping) and field in payload else payload


def _checked(letter: DeadLetter, payload: Any, kind: Kind[Any, Any] | None, *, edited: bool) -> Checked | None:
    """Checks the payload as an enqueue would; None for an unchanged payload of a kind without rules."""
    if not edited and (kind is None or kind.rules is None):
        return None
    if not isinstance(payload, Mapping):
        raise PayloadInvalid('the payload must be an object, like {"n": 1}', "payload")
    if kind is None:
        raise PayloadInvalid(
            f"the kind {letter.kind} is not known here, so another payload for it cannot be checked: give the app that "
            "has it, as in --app jobs:app",
            "payload",
        )
    checked = kind.check(payload)
    if edited and kind.rules is None:
        _check_nothing_sensitive(letter, payload)
    fixed = [("tenant", checked.tenant, letter.tenant)]
    if edited:
        fixed.append(("correlation_id", checked.correlation_id, letter.correlation_id))
    for name, given, own in fixed:
        if given is not None and given != own:
            field = (kind.rules and getattr(kind.rules, name)) or name
            raise PayloadInvalid(
                f"{letter.kind}: {field} is another {name} than that of the job that failed; leave it as it was", field
            )
    return checked


def _check_nothing_sensitive(letter: DeadLetter, payload: Mapping[str, Any]) -> None:
    """Refuses sensitive fields that an operator adds to a payload of a kind without rules."""
    known = {error.field for error in problems(NO_RULES, letter.payload)}
    if found := [e for e in problems(NO_RULES, payload) if e.field not in known]:
        raise PayloadInvalid(f"{letter.kind}: {'; '.join(map(str, found))}", found[0].field, found)
