"""Finds every field in which a payload breaks its rules; errors never repeat a value."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from dutiful.core.errors import FieldError
from dutiful.core.json import Location, clean, path_of
from dutiful.core.redaction.redact import safe_reason, secret_in
from dutiful.core.redaction.sensitive_names import CREDENTIALS, PASSWORD, ends_with, is_card_field, meaning, words
from dutiful.core.rules.rules import Id, Rules

LONGEST_ID = 200
MOST = 100  # sensitive fields reported of one payload
REMEDY = "keep it elsewhere and pass a reference"
_LONGEST_NAME = 500
_VERSION = re.compile(r"v?\d[\d.]{0,9}", re.ASCII)
_PATH = re.compile(r"(?:[~.]{0,2}/|[A-Za-z]:\\)[^\s@]*")


def content_violations(rules: Rules, payload: Mapping[str, Any], size: int) -> Iterator[FieldError]:
    """Checks a payload of any version, as JSON has it and `size` bytes long: its size, its version, nothing sensitive.

    One that is too large is not searched for sensitive fields.
    """
    if size > rules.size_limit:
        yield FieldError("payload", f"has {size:,} bytes, more than the limit of {rules.size_limit:,}: {REMEDY}")
    version = payload.get(rules.version_field, rules.default)
    if rules.versions and version not in rules.versions:
        accepted = ", ".join(f'"{version}"' for version in rules.versions)
        shown = f'"{version}"' if isinstance(version, str) and _VERSION.fullmatch(version) else "a version"
        yield FieldError(rules.version_field, f"is {shown} that is not accepted; accepted are: {accepted}")
    if size <= rules.size_limit:
        yield from islice(_find_sensitive(rules, payload), MOST)


def field_violations(rules: Rules, payload: Mapping[str, Any]) -> Iterator[FieldError]:
    """Checks a payload of the current version: fields that are missing, empty, or of another type."""
    for field, hint in rules.fields.items():
        problem = _field_problem(payload, field, hint)
        if problem is None and field in rules.ids:
            problem = _field_problem(payload, field, Id)
        if problem is None and field in (rules.tenant, rules.correlation_id, rules.unique_field):
            limit = column_limit(field, rules)
            if column_text(payload[field], limit) is None:
                problem = f"must be a whole number, or a text of at most {limit} characters without outer spaces"
        if problem is not None:
            yield FieldError(field, problem)


def _field_problem(payload: Mapping[str, Any], field: str, hint: Any) -> str | None:
    if field not in payload:
        return "is missing: it is required"
    value = payload[field]
    if value is None or (isinstance(value, str) and not value.strip()):
        return "is empty: it is required"
    if hint is Id:
        wanted = f"an id, which is a whole number or a text of at most {LONGEST_ID} characters"
        return None if _is_reference(value) else f"is not a reference: give {wanted}"
    try:
        msgspec.convert(value, type=hint)
    except msgspec.ValidationError as error:
        return f"is not what it has to be: {safe_reason(str(error))}"
    return None


def column_limit(field: str, rules: Rules) -> int:
    """The longest text that a field may have whose value is stored in a column of its job."""
    return 500 if field == rules.unique_field else 200


def column_text(value: Any, limit: int) -> str | None:
    """A field's value as it is stored in a column of its job; None if the column cannot hold it."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 1 << 63 else ""
    fits = isinstance(value, str) and 0 < len(value) <= limit and value == value.strip() == clean(value, limit)
    return value if fits else None


def _is_reference(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_reference(item) and not isinstance(item, list) for item in value)
    if isinstance(value, str):
        return 0 < len(value.strip()) <= len(value) <= LONGEST_ID
    return isinstance(value, int) and not isinstance(value, bool)


def _find_sensitive(rules: Rules, payload: Mapping[str, Any]) -> Iterator[FieldError]:
    """Names that mean a secret or content, and values with the shape of a secret, at any depth."""
    # Not recursive, so that a deeply nested payload cannot exhaust the stack.
    rest = [_inner(None, "", payload)]
    while rest:
        entry = next(rest[-1], None)
        if entry is None:
            rest.pop()
            continue
        location, name, value = entry
        problem = _name_problem(rules, name, value) if isinstance(location[1], str) else None
        match value:
            case _ if problem is not None:
                yield FieldError(path_of(location), problem)
            case dict() | list():
                if isinstance(value, dict) and (secret := _paired(rules, value)) is not None:
                    yield FieldError(path_of((location, "value")), f"is {secret}: {REMEDY}")
                rest.append(_inner(location, name, value))
            case str() | int() | float() if words(name) not in rules.allowed:
                found = _secret(name, value)
                if found is not None:
                    yield FieldError(path_of(location), f"has {found} in it: {REMEDY}")


def _inner(location: Location | None, name: str, value: Any) -> Iterator[tuple[Location, str, Any]]:
    """The items of a container; those of a list have the list's name."""
    if isinstance(value, dict):
        return (((location, key), key, item) for key, item in value.items())
    return (((location, index), name, item) for index, item in enumerate(value))


def _name_problem(rules: Rules, name: str, value: Any) -> str | None:
    if words(name) in rules.allowed:
        return None
    secret = "what must not be stored" if ends_with(name, rules.forbidden) else _meant(name, value)
    if secret is not None:
        return f"means {secret}, which has no place in a payload: {REMEDY}, or allow the name in the rules"
    found = secret_in(name[:_LONGEST_NAME])
    return None if found is None else f"has {found} for a name: {REMEDY}"


def _meant(name: str, value: Any) -> str | None:
    """What the name means, unless no secret has a value of this type."""
    secret = meaning(name)
    if isinstance(value, bool) or (isinstance(value, int | float) and secret != PASSWORD):
        return None
    is_directory = secret == PASSWORD and words(name) == ("pwd",) and isinstance(value, str) and _PATH.fullmatch(value)
    return None if is_directory else secret


def _paired(rules: Rules, pair: Mapping[str, Any]) -> str | None:
    """What the value of `{"name": "password", "value": "…"}` is."""
    name = next((pair[title] for title in ("name", "key", "field", "header") if title in pair), None)
    if not isinstance(name, str) or not isinstance(pair.get("value"), str) or not pair["value"]:
        return None
    secret = None if words(name) in rules.allowed else meaning(name)
    return secret if secret in CREDENTIALS else None


def _secret(name: str, value: str | float) -> str | None:
    if isinstance(value, int | float):
        value = str(int(value)) if 0 < abs(value) < 1 << 63 else ""
        value = value.removeprefix("-")
    return secret_in(value, card=is_card_field(name))
