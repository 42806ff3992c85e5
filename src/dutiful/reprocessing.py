"""A dead letter made into a job again: the same work, under a key of its own."""

import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.errors import PayloadInvalid
from dutiful.core.job import NewJob, OnConflict, Unique
from dutiful.core.payload import encode
from dutiful.kind import Kind
from dutiful.options import Options
from dutiful.reviewing import DeadLetter

KEY_LIMIT = 500
PAYLOAD_LIMIT = 256 * 1024  # of an edited payload whose kind is not known here
_EARLIER = re.compile(r"(?:_retry_\d+\.\d{3})+$", re.ASCII)
_MILLISECOND = timedelta(milliseconds=1)

Kinds = Mapping[str, Kind[Any, Any]]


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
    """The job that stands for `letter` from now on; `payload` instead of its own, `taken` are keys given at this time.

    What cannot be made a job raises PayloadInvalid.
    """
    asked, kind = letter.job, kinds.get(letter.kind)
    options = dict(asked.get("options") or {})
    body = letter.payload if payload is None else payload
    unique = None
    if letter.unique_key is not None:
        key = retry_key(letter.unique_key, at, taken)
        unique = _unique(kind, key)
        options["unique"] = key
        body = _rekeyed(body, kind, options, key)
    if payload is not None:
        body = _checked(letter, body, kind)
    return NewJob(
        id=id,
        kind=letter.kind,
        queue=letter.queue,
        payload=json_text(body) or "{}",
        priority=asked["priority"],
        max_attempts=letter.max_attempts,
        tenant=letter.tenant,
        correlation_id=letter.correlation_id,
        parent_id=_uuid(asked.get("parent_id")),
        retry_of=letter.id,
        subject=json_text(asked.get("subject")),
        created_by=by,
        options=json_text(options or None),
        unique=unique,
    )


def retry_key(key: str, at: datetime, taken: Collection[str] = ()) -> str:
    """The old key and the time, to the millisecond; a later one if that was given already."""
    while (new := f"{key}_retry_{at.timestamp():.3f}") in taken:
        at += _MILLISECOND
    if len(new) <= KEY_LIMIT:
        return new
    # One that has been tried many times over keeps its beginning, and its last time only.
    suffix = new[len(key) :]
    return _EARLIER.sub("", key)[: KEY_LIMIT - len(suffix)] + suffix


def changed_fields(old: Any, new: Any, path: str = "payload") -> list[str]:
    """Where two payloads differ: the paths, never the values."""
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
    return None if value is None else msgspec.json.encode(value).decode()


def _unique(kind: Kind[Any, Any] | None, key: str) -> Unique:
    """Held as the kind holds its keys; whatever that says of conflicts, two dead letters never share a job."""
    held = Unique(key)
    if kind is not None and kind.rules is not None and kind.rules.unique_field is not None:
        held = kind.rules.unique_for(key)
    elif kind is not None and kind._defaults.unique is not None:
        held = kind._defaults.unique
    return msgspec.structs.replace(held, key=key, on_conflict=OnConflict.REJECT)


def _rekeyed(payload: Any, kind: Kind[Any, Any] | None, options: Mapping[str, Any], key: str) -> Any:
    """With the new key where the old one came from; one of an older version may not have that field."""
    field = kind.rules.unique_field if kind is not None and kind.rules is not None else options.get("unique_field")
    return {**payload, field: key} if isinstance(payload, Mapping) and field in payload else payload


def _checked(letter: DeadLetter, payload: Any, kind: Kind[Any, Any] | None) -> Any:
    """An edited payload, as the kind would have taken it at first; of an unknown kind, as any object."""
    if not isinstance(payload, Mapping):
        raise PayloadInvalid('the payload must be an object, like {"n": 1}', "payload")
    if kind is None:
        return msgspec.json.decode(encode(payload, what="payload", limit=PAYLOAD_LIMIT))
    prepared = kind.prepare(Options(tenant=letter.tenant, correlation_id=letter.correlation_id), payload)
    if prepared.tenant != letter.tenant:
        raise PayloadInvalid("the payload names a tenant, and its job has none; leave that field as it was", "tenant")
    return msgspec.json.decode(prepared.payload)


def _uuid(value: Any) -> UUID | None:
    return UUID(value) if isinstance(value, str) else value
