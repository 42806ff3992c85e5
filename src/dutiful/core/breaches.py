"""Where a payload breaks its rules; every place, and never what stands there."""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dutiful.core.errors import FieldError
from dutiful.core.payload import clean
from dutiful.core.rules import Id, Rules
from dutiful.core.sensitive import REDACTED, is_card, secret_in
from dutiful.core.sensitive_names import ends_with, meaning, words

LONGEST_ID = 200
LOOKED_THROUGH = 1_000_000  # bytes: what is larger is refused for its size alone
REMEDY = "keep it elsewhere and pass a reference"
_ID_NAMES = (("id",), ("ids",), ("uuid",), ("ref",), ("timestamp",))
_LONGEST_NAME = 500
_VERSION = re.compile(r"[\w.+-]{1,20}", re.ASCII)


def content_breaches(rules: Rules, payload: Mapping[str, Any], size: int) -> Iterator[FieldError]:
    """Of a payload as JSON has it, `size` bytes long, in any version: too large, of no known version, or sensitive."""
    yield from _size_breach(rules, size)
    yield from _version_breach(rules, payload)
    if size <= LOOKED_THROUGH:
        yield from _sensitive_breaches(rules, payload)


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
        return f"is not what it has to be: {error}"
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
    rest: list[tuple[str, str, Any]] = [("", "", payload)]
    while rest:
        path, name, value = rest.pop()
        match value:
            case dict():
                inner = [(_join(path, key), str(key), item) for key, item in value.items()]
                kept = []
                for place, key, item in inner:
                    breach = _name_breach(rules, key)
                    if breach is not None:
                        yield FieldError(place, breach)
                    else:
                        kept.append((place, key, item))
                rest += reversed(kept)
            case list():
                rest += [(f"{path}[{index}]", name, item) for index, item in reversed(list(enumerate(value)))]
            case str() | int() if words(name) not in rules.allowed:
                found = _secret(name, value)
                if found is not None:
                    yield FieldError(path, f"has {found} in it: {REMEDY}")


def _name_breach(rules: Rules, name: str) -> str | None:
    if words(name) in rules.allowed:
        return None
    said = "what must not be stored" if ends_with(name, rules.forbidden) else meaning(name)
    if said is not None:
        return f"means {said}, which has no place in a payload: {REMEDY}, or allow the name in the rules"
    found = _secret_name(name[:_LONGEST_NAME])
    return None if found is None else f"has {found} for a name: {REMEDY}"


def _secret(name: str, value: str | int) -> str | None:
    if isinstance(value, int):
        value = str(value) if 0 < value < 1 << 63 else ""
    # Ids are numbers, too, and one in some dozens would be taken for a card's.
    if not value.isdecimal():
        return secret_in(value)
    return "a card number" if is_card(value) and not ends_with(name, _ID_NAMES) else None


def _join(path: str, key: Any) -> str:
    """The path of a field; a name that has a secret in it is not repeated."""
    name = str(key)
    shown = REDACTED if _secret_name(name[:_LONGEST_NAME]) is not None else clean(name, 60)
    return f"{path}.{shown}" if path else shown


_secret_name = functools.lru_cache(maxsize=4096)(secret_in)  # names are few, and come again and again
