"""Rules that the payloads of a kind, or of a category of kinds, must follow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import msgspec

from dutiful.core.errors import UsageError
from dutiful.core.job import Unique
from dutiful.core.redaction.sensitive_names import words

LIMIT = 10_240
Fields = Mapping[str, Any] | Sequence[str]  # names, or names with their types


class Id:
    """The type of a reference: a whole number, or a short text without spaces, or a list of them."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Required fields, references instead of content, nothing sensitive, a size limit, and a version.

    A field named here need not be a parameter of the handler: `ctx.payload` has it.
    """

    required: Fields = ()  # {"connection_id": int}, or the names alone
    references: Fields = ()  # ids of what the job is about; also required
    forbid: Sequence[str] = ()  # sensitive names besides those that are built in
    allow: Sequence[str] = ()  # names that only look sensitive
    limit: int | None = None  # of the whole payload, in bytes of JSON; None: 10,240
    versions: Sequence[str] = ()  # accepted ones, the current one last; none: payloads have no version
    version_field: str = "payload_version"
    default_version: str | None = None  # of a payload without one; None: the current one
    tenant: str | None = None  # the field with the job's tenant
    correlation_id: str | None = None  # the field with the job's correlation id
    unique: str | Unique | None = None  # the field with its unique key, or Unique("field", scope=…)

    def __post_init__(self) -> None:
        for name in ("required", "references", "forbid", "allow", "versions"):
            value = getattr(self, name)
            if isinstance(value, str) or not isinstance(value, Mapping | Sequence | set | frozenset):
                raise UsageError(f"rules: {name} {value!r:.80} must be a list of names, as in [{value!r:.80}]")
            if any(not isinstance(item, str) or not item for item in value):
                raise UsageError(f"rules: {name} has something in it that is not a name")
        if not isinstance(self.versions, list | tuple) or len(set(self.versions)) < len(self.versions):
            raise UsageError("rules: versions must be a list of different texts, the current one last")
        if self.unique is not None and not isinstance(self.unique, str | Unique):
            raise UsageError(f'rules: unique {self.unique!r:.80} must be the name of a field, or Unique("field", …)')
        for name, field in (
            ("version_field", self.version_field),
            ("tenant", self.tenant),
            ("correlation_id", self.correlation_id),
            ("unique", self.unique_field),
        ):
            if field is not None and (not isinstance(field, str) or not field):
                raise UsageError(f"rules: {name} {field!r:.80} must be the name of a field")
        for field, hint in self.fields.items():
            _check_type(field, hint)
        if self.limit is not None and (not isinstance(self.limit, int) or self.limit < 2):
            raise UsageError(f"rules: limit {self.limit!r} must be a number of bytes, from 2")
        if self.default_version is not None and self.default_version not in self.versions:
            raise UsageError(f"rules: default_version {self.default_version!r} must be one of versions")

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Every field that must be there, with its type."""
        own = {field: Any for field in (self.tenant, self.correlation_id, self.unique_field) if field is not None}
        required = _typed(self.required, Any)
        typed = {field: hint for field, hint in required.items() if hint is not Any}
        return own | required | _typed(self.references, Id) | typed

    @cached_property
    def ids(self) -> frozenset[str]:
        """The fields that must be references, whatever their type."""
        return frozenset(field for field, hint in _typed(self.references, Id).items() if hint is Id)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every field that the rules mention."""
        return frozenset(self.fields) | ({self.version_field} if self.versions else frozenset())

    @cached_property
    def allowed(self) -> frozenset[tuple[str, ...]]:
        return frozenset(words(name) for name in self.allow)

    @cached_property
    def forbidden(self) -> frozenset[tuple[str, ...]]:
        return frozenset(words(name) for name in self.forbid)

    @property
    def size_limit(self) -> int:
        return LIMIT if self.limit is None else self.limit

    @property
    def unique_field(self) -> str | None:
        return self.unique.key if isinstance(self.unique, Unique) else self.unique

    @property
    def default(self) -> str | None:
        """The version of a payload without one."""
        return self.default_version or (self.versions[-1] if self.versions else None)

    def unique_for(self, key: str) -> Unique:
        """The Unique for `key`, taken from the payload."""
        return msgspec.structs.replace(self.unique, key=key) if isinstance(self.unique, Unique) else Unique(key)

    def plus(self, other: "Rules | None") -> Self:
        """These rules and `other`, which takes precedence: a kind's own over its category's."""
        if other is None:
            return self
        changes: dict[str, Any] = {
            "required": _typed(self.required, Any) | _typed(other.required, Any),
            "references": _typed(self.references, Id) | _typed(other.references, Id),
            "forbid": (*self.forbid, *other.forbid),
            "allow": (*self.allow, *other.allow),
        }
        for field in fields(self):
            if field.name not in changes:
                own, theirs = getattr(self, field.name), getattr(other, field.name)
                changes[field.name] = own if theirs == field.default else theirs
        return type(self)(**changes)


def _typed(names: Fields, hint: Any) -> dict[str, Any]:
    return dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, hint)


def _check_type(field: str, hint: Any) -> None:
    if hint is Id:
        return
    try:
        msgspec.json.Decoder(hint)
    except (TypeError, RuntimeError) as error:
        raise UsageError(
            f"rules: the type of {field!r} cannot be that of JSON: {error}; use int, str, UUID …"
        ) from error
