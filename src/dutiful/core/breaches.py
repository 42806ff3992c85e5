"""Where a payload breaks its rules; every place, and never what stands there."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from dutiful.core.errors import FieldError
from dutiful.core.payload import clean
from dutiful.core.place import Place, safe_reason, spell
from dutiful.core.rules import Id, Rules
from dutiful.core.sensitive import secret_in
from dutiful.core.sensitive_names import CREDENTIALS, PASSWORD, ends_with, meaning, speaks_of_cards, words

LONGEST_ID = 200
MOST = 100  # sensitive places that are told of one payload
REMEDY = "keep it elsewhere and pass a reference"
_LONGEST_NAME = 500
_VERSION = re.compile(r"v?\d[\d.]{0,9}", re.ASCII)
_PATH = re.compile(r"(?:[~.]{0,2}/|[A-Za-z]:\\)[^\s@]*")


def content_breaches(rules: Rules, payload: Mapping[str, Any], size: int) -> Iterator[FieldError]:
    """Of a payload as JSON has it, `size` bytes long, in any version: too large, of no known version, or sensitive.

    What is too large is not looked through.
    """
    yield from _size_breach(rules, size)
    yield from _version_breach(rules, payload)
    if size <= rules.size_limit:
        yield from islice(_sensitive_breaches(rules, payload), MOST)


def _size_breach(rules: Rules, size: int) -> Iterator[FieldError]:
    if size > rules.size_limit:
        yield FieldError("payload", f"has {size:,} bytes, more than the limit of {rules.size_limit:,}: {REMEDY}")


def _version_breach(rules: Rules, payload: Mapping[str, Any]) -> Iterator[FieldError]:
    if not rules.versions:
        return
    version = payload.get(rules.version_field, rules.default)
    if version not in rules.versions:
        accepted = ", ".join(f'"{version}"' for version in rules.versions)
        said = f'"{version}"' if isinstance(version, str) and _VERSION.fullmatch(version) else "a version"
        yield FieldError(rules.version_field, f"is {said} that is not accepted; accepted are: {accepted}")


def field_breaches(rules: Rules, payload: Mapping[str, Any]) -> Iterator[FieldError]:
    """Of a payload in its current version: fields that are missing, empty, or of another type."""
    for field, hint in rules.fields.items():
        problem = _field_problem(payload, field, hint)
        if problem is None and field in rules.ids:
            problem = _field_problem(payload, field, Id)
        if problem is None and field in (rules.tenant, rules.correlation_id, rules.unique_field):
            problem = _column_problem(payload[field], column_limit(field, rules))
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


def _column_problem(value: Any, limit: int) -> str | None:
    if column_text(value, limit) is not None:
        return None
    return f"must be a whole number, or a text of at most {limit} characters without outer spaces"


def column_limit(field: str, rules: Rules) -> int:
    """How long a field may be that gives its job a column."""
    return 500 if field == rules.unique_field else 200


def column_text(value: Any, limit: int) -> str | None:
    """A field's value as the job's own column has it; None if that cannot hold it."""
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


def _sensitive_breaches(rules: Rules, payload: Mapping[str, Any]) -> Iterator[FieldError]:
    """Names that mean a secret or content, and values that have the shape of one, at any depth."""
    # Not recursive: whoever nests deeply is not to be able to exhaust the stack.
    rest = [_inner(None, "", payload)]
    while rest:
        entry = next(rest[-1], None)
        if entry is None:
            rest.pop()
            continue
        place, name, value = entry
        problem = _name_problem(rules, name, value) if isinstance(place[1], str) else None
        match value:
            case _ if problem is not None:
                yield FieldError(spell(place), problem)
            case dict() | list():
                if isinstance(value, dict) and (said := _paired(rules, value)) is not None:
                    yield FieldError(spell((place, "value")), f"is {said}: {REMEDY}")
                rest.append(_inner(place, name, value))
            case str() | int() | float() if words(name) not in rules.allowed:
                found = _secret(name, value)
                if found is not None:
                    yield FieldError(spell(place), f"has {found} in it: {REMEDY}")


def _inner(place: Place | None, name: str, value: Any) -> Iterator[tuple[Place, str, Any]]:
    """What is in a value; the items of a list have the name of the list."""
    if isinstance(value, dict):
        return (((place, key), key, item) for key, item in value.items())
    return (((place, index), name, item) for index, item in enumerate(value))


def _name_problem(rules: Rules, name: str, value: Any) -> str | None:
    if words(name) in rules.allowed:
        return None
    said = "what must not be stored" if ends_with(name, rules.forbidden) else _meant(name, value)
    if said is not None:
        return f"means {said}, which has no place in a payload: {REMEDY}, or allow the name in the rules"
    found = secret_in(name[:_LONGEST_NAME])
    return None if found is None else f"has {found} for a name: {REMEDY}"


def _meant(name: str, value: Any) -> str | None:
    """By the name, unless the value is of a kind that a secret is not."""
    said = meaning(name)
    if isinstance(value, bool) or (isinstance(value, int | float) and said != PASSWORD):
        return None
    is_directory = said == PASSWORD and words(name) == ("pwd",) and isinstance(value, str) and _PATH.fullmatch(value)
    return None if is_directory else said


def _paired(rules: Rules, pair: Mapping[str, Any]) -> str | None:
    """What `{"name": "password", "value": "…"}` has for a value."""
    name = next((pair[title] for title in ("name", "key", "field", "header") if title in pair), None)
    if not isinstance(name, str) or not isinstance(pair.get("value"), str) or not pair["value"]:
        return None
    said = None if words(name) in rules.allowed else meaning(name)
    return said if said in CREDENTIALS else None


def _secret(name: str, value: str | float) -> str | None:
    if isinstance(value, int | float):
        value = str(int(value)) if 0 < abs(value) < 1 << 63 else ""
        value = value.removeprefix("-")
    return secret_in(value, card=speaks_of_cards(name))
