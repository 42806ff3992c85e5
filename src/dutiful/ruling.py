"""A kind's rules at work: on what is enqueued, and on what is about to run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from dutiful.core import breaches
from dutiful.core.errors import FieldError, PayloadInvalid, UsageError
from dutiful.core.job import Unique
from dutiful.core.payload import encode
from dutiful.core.place import safe_name
from dutiful.core.rules import Rules
from dutiful.signature import Schema

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
NO_OBJECT = FieldError("payload", 'must be an object, like {"n": 1}')
MOST = 100  # unknown fields that are told of one payload
UNBOUNDED = 1 << 40  # the size is one breach among others, so that all are told


@dataclass(frozen=True, slots=True)
class Checked:
    """A payload that keeps to the rules, and what it says of its job."""

    text: str
    tenant: str | None = None
    correlation_id: str | None = None
    unique: Unique | None = None


class Accepted(NamedTuple):
    """A stored payload as a job gets it."""

    arguments: str  # what the handler asks for
    payload: str  # the whole, in its current version


class Ruling:
    """What rules and signature together make of a payload."""

    def __init__(self, kind: str, rules: Rules, signature: Callable[[], Schema]) -> None:
        self.rules = rules
        self._kind = kind
        self._signature = signature  # asked when needed: a pipeline's grows with its phases
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

    def check(self, payload: Mapping[str, Any]) -> Checked:
        """A payload that is to be stored; PayloadInvalid tells everything that is wrong with it."""
        stored = self._stamped(self._builtin(payload))
        text = encode(stored, what="payload", limit=UNBOUNDED)
        errors, ready = self._judge(stored, len(text.encode()))
        if errors:
            raise self._invalid(errors)
        return Checked(text, *self._columns(ready))

    def accept(self, text: str, tenant: str | None) -> Accepted:
        """What a handler is to get of a stored payload: of the current version, and only what it asks for.

        The job may have come by SQL, or from code that knew other rules.
        """
        stored = msgspec.json.decode(text)
        if not isinstance(stored, dict):
            raise self._invalid([NO_OBJECT])
        errors, ready = self._judge(stored, len(msgspec.json.encode(stored)))
        if not errors and self.rules.tenant is not None and self._columns(ready)[0] != tenant:
            errors = [FieldError(self.rules.tenant, "is another tenant than the job's own")]
        if errors:
            raise self._invalid(errors)
        whole = text if ready is stored else encode(ready, what="payload", limit=UNBOUNDED)
        return Accepted(encode(self._asked_for(ready), what="payload", limit=UNBOUNDED), whole)

    def _judge(self, payload: dict[str, Any], size: int) -> tuple[list[FieldError], dict[str, Any]]:
        """All errors, and the payload in its current version."""
        rules = self.rules
        errors = list(breaches.content_breaches(rules, payload, size))
        version = payload.get(rules.version_field, rules.default)
        if isinstance(version, str) and version in self._upgrades:
            if errors:
                return errors, payload  # an upgrade need not cope with what is refused anyway
            try:
                payload = self._upgraded(payload, version)
            except Exception as error:
                problem = f"is {version}, and the upgrade of that failed with {type(error).__qualname__}"
                raise self._invalid([FieldError(rules.version_field, problem)]) from error
        errors += breaches.field_breaches(rules, payload)
        told = {error.field for error in errors}
        errors += (error for error in self._misfits(payload) if error.field not in told)
        return errors, payload

    def _misfits(self, payload: dict[str, Any]) -> Iterator[FieldError]:
        """What the handler's signature says."""
        signature, asked = self._signature(), self._asked_for(payload)
        try:
            signature.decode(encode(asked, what="payload", limit=UNBOUNDED))
        except PayloadInvalid as error:
            # It stops at the first; what is missing or unknown can be told of all.
            missing = [field.name for field in signature.fields() if field.required and field.name not in asked]
            yield from (FieldError(name, "is missing: the handler has it as a parameter") for name in missing)
            unknown = [name for name in asked if name not in signature.names]
            names = ", ".join(signature.names) or "none"
            problem = f"is unknown; the handler's parameters are: {names}"
            yield from (FieldError(safe_name(name), problem) for name in unknown[:MOST])
            told = {*missing, *map(safe_name, unknown)}
            yield from (one for one in error.errors if one.field not in told)
        except UsageError:
            raise  # the signature's fault
        except Exception as error:  # of a type of the handler's; its text may hold what it was given
            yield FieldError("payload", f"does not fit: a type of the handler's raised {type(error).__qualname__}")

    def _asked_for(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Without the fields that only the rules know."""
        wanted = self._signature().names
        return {name: value for name, value in payload.items() if name in wanted or name not in self.rules.names}

    def _stamped(self, payload: dict[str, Any]) -> dict[str, Any]:
        """With its version: what waits while a newer one is deployed keeps its own."""
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
            None if field is None else breaches.column_text(payload[field], breaches.column_limit(field, rules))
            for field in (rules.tenant, rules.correlation_id, rules.unique_field)
        )
        return tenant, correlation_id, None if key is None else rules.unique_for(key)

    def _builtin(self, payload: Any) -> dict[str, Any]:
        stored = _builtin(payload)
        if not isinstance(stored, dict):
            raise self._invalid([NO_OBJECT])
        return stored

    def _invalid(self, errors: list[FieldError]) -> PayloadInvalid:
        field = errors[0].field if len(errors) == 1 else None
        return PayloadInvalid(f"{self._kind}: {'; '.join(map(str, errors))}", field, errors)


def problems(rules: Rules, payload: Any) -> list[FieldError]:
    """Everything in which a payload breaks the rules, whatever its kind."""
    try:
        stored = _builtin(payload)
    except PayloadInvalid as error:
        return list(error.errors)
    if not isinstance(stored, dict):
        return [NO_OBJECT]
    size = len(msgspec.json.encode(stored))
    return [*breaches.content_breaches(rules, stored, size), *breaches.field_breaches(rules, stored)]


def _builtin(payload: Any) -> Any:
    """As JSON has it: a UUID is a text."""
    return msgspec.json.decode(encode(payload, what="payload", limit=UNBOUNDED))
