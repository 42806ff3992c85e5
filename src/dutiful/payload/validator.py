"""Applies a kind's rules to payloads: when a job is enqueued, and before it runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from dutiful.core.errors import FieldError, PayloadInvalid, UsageError
from dutiful.core.job import Unique
from dutiful.core.json import encode, read_object
from dutiful.core.redaction.redact import safe_name
from dutiful.core.rules import violations
from dutiful.core.rules.rules import Rules
from dutiful.payload.signature import Schema

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
NO_OBJECT = FieldError("payload", 'must be an object, like {"n": 1}')
MOST = 100  # unknown fields reported of one payload
SHOWN = 20  # errors in one message
UNBOUNDED = 1 << 40  # size is one violation among others, so that all are reported


@dataclass(frozen=True, slots=True)
class Checked:
    """A payload that follows the rules, and the columns of its job that it sets."""

    text: str
    tenant: str | None = None
    correlation_id: str | None = None
    unique: Unique | None = None


class Accepted(NamedTuple):
    """A stored payload as its handler gets it."""

    arguments: str  # the fields that the handler declares
    payload: str  # all fields, in the current version


class PayloadValidator:
    """Checks payloads by a kind's rules and its handler's signature."""

    def __init__(self, kind: str, rules: Rules, signature: Callable[[], Schema]) -> None:
        self.rules = rules
        self._kind = kind
        self._signature = signature  # called when needed, because a pipeline's grows with its phases
        self._upgrades: dict[str, Upgrade] = {}

    def add_upgrade(self, version: str, upgrade: Upgrade) -> None:
        if version not in self.rules.versions[:-1]:
            older = ", ".join(self.rules.versions[:-1]) or "none"
            raise UsageError(
                f"kind {self._kind}: {version!r} is no older version that its rules accept; those are: {older}"
            )
        if version in self._upgrades:
            raise UsageError(f"kind {self._kind} has an upgrade of version {version!r} already")
        self._upgrades[version] = upgrade

    def check(self, payload: Mapping[str, Any], others: Sequence[FieldError] = ()) -> Checked:
        """Checks a payload that is to be stored; PayloadInvalid has all its errors, and `others` of its job."""
        stored = _builtin(payload)
        if not isinstance(stored, dict):
            raise self._invalid([NO_OBJECT])
        stored = self._stamped(stored)
        text = encode(stored, what="payload", limit=UNBOUNDED)
        errors, ready = self._check(stored, len(text.encode()))
        if errors or others:
            raise self._invalid([*errors, *others])
        return Checked(text, *self._columns(ready))

    def subject_errors(self, text: str) -> list[FieldError]:
        """The sensitive fields of a subject, which lists and logs show as they do the payload."""
        subject = read_object(text)
        return list(violations.sensitive_fields(self.rules, subject, "subject")) if subject else []

    def accept(self, text: str, tenant: str | None, subject: str | None = None) -> Accepted:
        """The handler's part of a stored payload: in the current version, and only the fields that it declares.

        It is checked again, because the job may come from SQL, or from code with other rules.
        """
        stored = msgspec.json.decode(text)
        if not isinstance(stored, dict):
            raise self._invalid([NO_OBJECT])
        errors, ready = self._check(stored, len(msgspec.json.encode(stored)))
        if not errors and self.rules.tenant is not None and self._columns(ready)[0] != tenant:
            errors = [FieldError(self.rules.tenant, "is another tenant than the job's own")]
        if subject is not None:
            errors += self.subject_errors(subject)
        if errors:
            raise self._invalid(errors)
        whole = text if ready is stored else encode(ready, what="payload", limit=UNBOUNDED)
        return Accepted(encode(self._declared(ready), what="payload", limit=UNBOUNDED), whole)

    def _check(self, payload: dict[str, Any], size: int) -> tuple[list[FieldError], dict[str, Any]]:
        """All errors, and the payload in its current version."""
        rules = self.rules
        errors = list(violations.content_violations(rules, payload, size))
        version = payload.get(rules.version_field, rules.default)
        if isinstance(version, str) and version in self._upgrades:
            if errors:
                return errors, payload  # upgrades get valid payloads only
            try:
                payload = self._upgraded(payload, version)
            except Exception as error:
                problem = f"is {version}, and the upgrade of that failed with {type(error).__qualname__}"
                raise self._invalid([FieldError(rules.version_field, problem)]) from error
        errors += violations.field_violations(rules, payload)
        reported = {error.field for error in errors}
        errors += (error for error in self._signature_errors(payload) if error.field not in reported)
        return errors, payload

    def _signature_errors(self, payload: dict[str, Any]) -> Iterator[FieldError]:
        signature, declared = self._signature(), self._declared(payload)
        try:
            signature.decode(encode(declared, what="payload", limit=UNBOUNDED))
        except PayloadInvalid as error:
            # msgspec stops at the first error; missing and unknown fields can all be reported.
            missing = [field.name for field in signature.fields() if field.required and field.name not in declared]
            yield from (FieldError(name, "is missing: the handler has it as a parameter") for name in missing)
            unknown = [name for name in declared if name not in signature.names]
            names = ", ".join(signature.names) or "none"
            problem = f"is unknown; the handler's parameters are: {names}"
            yield from (FieldError(safe_name(name), problem) for name in unknown[:MOST])
            reported = {*missing, *map(safe_name, unknown[:MOST])}
            yield from (one for one in error.errors if one.field not in reported)
        except UsageError:
            raise  # the signature's fault
        except Exception as error:  # raised by a type of the handler; its text may contain the value
            yield FieldError("payload", f"does not fit: a type of the handler's raised {type(error).__qualname__}")

    def _declared(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The payload without the fields that only the rules mention."""
        wanted = self._signature().names
        return {name: value for name, value in payload.items() if name in wanted or name not in self.rules.names}

    def _stamped(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The payload with its version, so that a job keeps it while a newer one is deployed."""
        if not self.rules.versions or self.rules.version_field in payload:
            return payload
        return {**payload, self.rules.version_field: self.rules.default}

    def _upgraded(self, payload: dict[str, Any], version: str) -> dict[str, Any]:
        order, field = list(self.rules.versions), self.rules.version_field
        while version in self._upgrades:
            newer = self._upgrades[version](dict(payload))
            if not isinstance(newer, dict):
                raise UsageError(f"kind {self._kind}: the upgrade of version {version!r} must return a dict")
            following = newer.get(field, version)
            if following == version:
                following = order[order.index(version) + 1]
            if following not in order or order.index(following) <= order.index(version):
                raise UsageError(f"kind {self._kind}: the upgrade of version {version!r} leads to no newer one")
            payload, version = {**newer, field: following}, following
        return payload

    def _columns(self, payload: Mapping[str, Any]) -> tuple[str | None, str | None, Unique | None]:
        rules = self.rules
        tenant, correlation_id, key = (
            None if field is None else violations.column_text(payload[field], violations.column_limit(field, rules))
            for field in (rules.tenant, rules.correlation_id, rules.unique_field)
        )
        return tenant, correlation_id, None if key is None else rules.unique_for(key)

    def _invalid(self, errors: list[FieldError]) -> PayloadInvalid:
        field = errors[0].field if len(errors) == 1 else None
        shown = [*map(str, errors[:SHOWN]), *([f"and {len(errors) - SHOWN:,} more"] if len(errors) > SHOWN else [])]
        return PayloadInvalid(f"{self._kind}: {'; '.join(shown)}", field, errors)


def problems(rules: Rules, payload: Any) -> list[FieldError]:
    """All violations of the rules in a payload, whatever its kind."""
    try:
        stored = _builtin(payload)
    except PayloadInvalid as error:
        return list(error.errors)
    if not isinstance(stored, dict):
        return [NO_OBJECT]
    size = len(msgspec.json.encode(stored))
    return [*violations.content_violations(rules, stored, size), *violations.field_violations(rules, stored)]


def _builtin(payload: Any) -> Any:
    """Converts to plain JSON values; a UUID becomes a text."""
    return msgspec.json.decode(encode(payload, what="payload", limit=UNBOUNDED))
