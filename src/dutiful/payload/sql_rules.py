"""A kind's rules as the database stores them: those it checks itself when jobs are enqueued by SQL."""

from collections.abc import Sequence
from typing import Any, Self

import msgspec

from dutiful.core.rules.rules import Rules


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

    @classmethod
    def of(cls, kind: str, rules: Rules) -> Self:
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
            unique_as={
                "scope": unique.scope,
                "on_conflict": unique.on_conflict,
                "window_ms": None if unique.window is None else round(unique.window.total_seconds() * 1000),
                "across_kinds": unique.across_kinds,
            },
            allowed=sorted("_".join(name) for name in rules.allowed),
            forbidden=sorted("_".join(name) for name in rules.forbidden),
        )
