"""A kind's rules and defaults as the database stores them, for jobs that are enqueued by SQL."""

import types
import typing
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Self
from uuid import UUID

import msgspec

from dutiful.core.job import Unique
from dutiful.core.rules.rules import Id, Rules
from dutiful.payload.signature import Schema

# Types that the database can check as Python does; those of other fields are checked before the job runs.
TYPES: dict[Any, str] = {
    Id: "id",
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    UUID: "uuid",
    date: "date",
    datetime: "time",
}


class FieldRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The type of one field, in the words of the function type_problem."""

    name: str
    type: str
    nullable: bool = False
    required: bool = True


class PayloadRule(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one kind; the fields are the columns of the table payload_rule."""

    kind: str
    size_limit: int
    required: Sequence[str]
    versions: Sequence[str]  # the current one last
    version_field: str
    default_version: str | None
    tenant_field: str | None
    correlation_field: str | None
    unique_field: str | None
    unique_as: dict[str, Any]  # scope, on_conflict, …, as insert_jobs reads them
    allowed: Sequence[str] = ()  # names, their words joined by _
    forbidden: Sequence[str] = ()
    fields: Sequence[FieldRule] = ()
    known: Sequence[str] | None = None  # the names that a payload may have; None: any
    sealed: bool = False  # the kind is encrypted: SQL, which has no key, cannot enqueue it

    @classmethod
    def of(cls, kind: str, rules: Rules, schema: Schema | None = None, *, sealed: bool = False) -> Self:
        """`schema`: of the handler's parameters."""
        unique = rules.unique_for("")
        return cls(
            kind=kind,
            size_limit=rules.size_limit,
            required=list(rules.fields),
            versions=list(rules.versions),
            version_field=rules.version_field,
            default_version=rules.default,
            tenant_field=rules.tenant,
            correlation_field=rules.correlation_id,
            unique_field=rules.unique_field,
            unique_as=_held(unique),
            allowed=sorted("_".join(name) for name in rules.allowed),
            forbidden=sorted("_".join(name) for name in rules.forbidden),
            fields=[*_of_rules(rules), *([] if schema is None else _of_schema(schema))],
            known=None if schema is None or not schema.strict else sorted({*rules.names, *schema.names}),
            sealed=sealed,
        )


class KindDefault(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind declares for its jobs; the fields are the columns of the table kind_default."""

    kind: str
    queue: str
    priority: int
    max_attempts: int
    unique_as: dict[str, Any] | None = None  # with the key

    @classmethod
    def of(cls, kind: str, queue: str, priority: int, max_attempts: int, unique: Unique | None) -> Self:
        held = None if unique is None else {"key": unique.key, **_held(unique)}
        return cls(kind=kind, queue=queue, priority=priority, max_attempts=max_attempts, unique_as=held)


def _held(unique: Unique) -> dict[str, Any]:
    """How a unique key is held, as insert_jobs reads it."""
    return {
        "scope": unique.scope,
        "on_conflict": unique.on_conflict,
        "window_ms": None if unique.window is None else round(unique.window.total_seconds() * 1000),
        "across_kinds": unique.across_kinds,
    }


def _of_rules(rules: Rules) -> list[FieldRule]:
    typed = [FieldRule(name=name, type=TYPES[hint]) for name, hint in rules.fields.items() if _checked(hint)]
    ids = [FieldRule(name=name, type="id") for name in sorted(rules.ids) if rules.fields[name] is not Id]
    return typed + ids


def _of_schema(schema: Schema) -> list[FieldRule]:
    found = []
    for field in schema.fields():
        hint, nullable = _without_none(field.hint)
        if _checked(hint):
            found.append(FieldRule(name=field.name, type=TYPES[hint], nullable=nullable, required=field.required))
    return found


def _without_none(hint: Any) -> tuple[Any, bool]:
    """`int | None` as int, and whether None is allowed."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    others = [one for one in typing.get_args(hint) if one is not type(None)]
    nullable = len(others) < len(typing.get_args(hint))
    return (others[0] if len(others) == 1 else None), nullable


def _checked(hint: Any) -> bool:
    return isinstance(hint, type) and hint in TYPES
