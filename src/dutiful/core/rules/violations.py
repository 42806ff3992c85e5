"""Finds every field in which a payload breaks its rules; errors never repeat a value."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from dutiful.core.errors import FieldError
from dutiful.core.json import Location, clean, path_of
from dutiful.core.redaction.assignments import is_placeholder
from dutiful.core.redaction.redact import safe_reason, secret_in, secret_in_name
from dutiful.core.redaction.sensitive_names import CREDENTIALS, PASSWORD, FieldName, ends_with, field_name
from dutiful.core.rules.rules import Id, Rules

LONGEST_ID = 200
MOST = 100  # sensitive fields reported of one payload
REMEDY = "keep it elsewhere and pass a reference"
LONGEST_KEY = 500
_RETRIES = re.compile(r"(?:_retry_[0-9]{10}\.[0-9]{3})+\Z")
_VERSION = re.compile(r"v?\d[\d.]{0,9}", re.ASCII)
_PATH = re.compile(r"(?:[~.]{0,2}/|[A-Za-z]:\\)[^\s@]*")


def content_violations(rules: Rules, payload: Mapping[str, Any], size: int) -> Iterator[FieldError]:
    """Checks a payload of any version, as JSON has it and `size` bytes long: its size, its version, nothing sensitive.

    One that is too large is not searched for sensitive fields.
    """
    if size > rules.size_limit:
        size -= _retries_in_key(rules, payload)
    if size > rules.size_limit:
        yield FieldError("payload", f"has {size:,} bytes, more than the limit of {rules.size_limit:,}: {REMEDY}")
    version = payload.get(rules.version_field, rules.default)
    if rules.versions and version not in rules.versions:
        accepted = ", ".join(f'"{version}"' for version in rules.versions)
        shown = f'"{version}"' if isinstance(version, str) and _VERSION.fullmatch(version) else "a version"
        yield FieldError(rules.version_field, f"is {shown} that is not accepted; accepted are: {accepted}")
    if size <= rules.size_limit:
        yield from islice(_find_sensitive(rules, payload), MOST)


def _retries_in_key(rules: Rules, payload: Mapping[str, Any]) -> int:
    """The bytes that reprocessing has added to the key: a payload of full size stays within its limit."""
    key = None if rules.unique_field is None else payload.get(rules.unique_field)
    found = _RETRIES.search(key[-LONGEST_KEY:]) if isinstance(key, str) else None
    return 0 if found is None else len(found[0])


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
        wanted = f"an id, which is a whole number, or a text of at most {LONGEST_ID} characters without spaces"
        return None if _is_reference(value) else f"is not a reference: give {wanted}"
    try:
        msgspec.convert(value, type=hint)
    except msgspec.ValidationError as error:
        return f"is not what it has to be: {safe_reason(str(error))}"
    return None


def column_limit(field: str, rules: Rules) -> int:
    """The longest text that a field may have whose value is stored in a column of its job."""
    return LONGEST_KEY if field == rules.unique_field else 200


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
        # Prose has spaces; an id that a person may read aloud has none.
        return 0 < len(value) <= LONGEST_ID and value.isprintable() and not any(map(str.isspace, value))
    return isinstance(value, int) and not isinstance(value, bool)


def sensitive_fields(rules: Rules, value: Mapping[str, Any], root: str) -> Iterator[FieldError]:
    """The same search in another object than the payload, named `root` in errors."""
    yield from islice(_find_sensitive(rules, value, (None, root)), MOST)


def _find_sensitive(rules: Rules, payload: Mapping[str, Any], location: Location | None = None) -> Iterator[FieldError]:
    """Names that mean a secret or content, and values with the shape of a secret, at any depth."""
    # Not recursive, so that a deeply nested payload cannot exhaust the stack.
    named = _named_errors(rules, payload)
    yield from (FieldError(path_of((location, step)), problem) for step, problem in named.items())
    rest = [_inner(location, NAMELESS, payload, named)]
    while rest:
        entry = next(rest[-1], None)
        if entry is None:
            rest.pop()
            continue
        inner, name, item = entry
        problem = _name_problem(rules, str(inner[1]), name, item) if isinstance(inner[1], str) else None
        match item:
            case _ if problem is not None:
                yield FieldError(path_of(inner), problem)
            case dict() | list():
                named = _named_errors(rules, item, among=isinstance(inner[1], int))
                yield from (FieldError(path_of((inner, step)), problem) for step, problem in named.items())
                rest.append(_inner(inner, name, item, named))
            case str() | int() | float() if not _is_allowed(rules, name):
                found = _secret(name, item)
                if found is not None:
                    yield FieldError(path_of(inner), f"has {found} in it: {REMEDY}")


def _inner(
    location: Location | None, name: FieldName, value: Any, named: Collection[str | int]
) -> Iterator[tuple[Location, FieldName, Any]]:
    """The items of a container, without those reported already; those of a list have the list's name."""
    if isinstance(value, dict):
        return (((location, key), field_name(key), item) for key, item in value.items() if key not in named)
    return (((location, index), name, item) for index, item in enumerate(value) if index not in named)


def _name_problem(rules: Rules, written: str, name: FieldName, value: Any) -> str | None:
    if _is_allowed(rules, name):
        return None
    forbidden = rules.forbidden and ends_with(name.words, rules.forbidden)
    secret = "what must not be stored" if forbidden else _meant(name, value)
    if secret is not None:
        return f"means {secret}, which has no place in a payload: {REMEDY}, or allow the name in the rules"
    found = secret_in_name(written)
    return None if found is None else f"has {found} for a name: {REMEDY}"


def _is_allowed(rules: Rules, name: FieldName) -> bool:
    return bool(rules.allowed) and name.words in rules.allowed


def _meant(name: FieldName, value: Any) -> str | None:
    """What the name means, unless no secret has a value of this type."""
    secret = name.meaning
    if secret is None:
        return name.flagged if name.flagged in CREDENTIALS and isinstance(value, str) and not _is_flag(value) else None
    if isinstance(value, bool) or (isinstance(value, int | float) and secret != PASSWORD):
        return None
    is_directory = secret == PASSWORD and name.words == ("pwd",) and isinstance(value, str) and _PATH.fullmatch(value)
    return None if is_directory else secret


def _is_flag(text: str) -> bool:
    return FLAG.fullmatch(text) is not None or is_placeholder(text)


# --- a name and its value side by side


def _named_errors(rules: Rules, container: Any, *, among: bool = False) -> dict[str | int, str]:
    """Where a container has the secret that another item of it names, with the problem; `among`: it is in a list."""
    if isinstance(container, dict):
        paired = not (CONTENTS.isdisjoint(container) and TEXTS.isdisjoint(container))
        return dict(_paired(rules, container)) if paired else {}
    if len(container) == 2 and (secret := _couple(rules, *container, among=among)) is not None:
        return {1: f"is {secret}: {REMEDY}"}
    return dict(_arguments(rules, container))


def _couple(rules: Rules, name: Any, value: Any, *, among: bool) -> str | None:
    """What the second of two texts is, as in `["password", "…"]`, unless both are names, or it is a field's type."""
    if not isinstance(name, str) or not isinstance(value, str) or not NAME.fullmatch(name):
        return None
    if (not among and len(value) > 1 and NAME.fullmatch(value) and value.isalpha()) or _is_told(value):
        return None
    return _named(rules, name, value)


def _is_told(text: str) -> bool:
    """Whether it tells of a value, but is none: a label, a type, another name, a placeholder."""
    return _is_flag(text) or any(map(str.isspace, text)) or text in _TYPES or field_name(text).meaning is not None


def _paired(rules: Rules, pair: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """`{"name": "password", "value": "…"}`; a text may also be the label of the field that is named."""
    titles = [item for key, item in pair.items() if key in TITLES and isinstance(item, str)]
    for key, item in pair.items():
        holds = key in CONTENTS or (key in TEXTS and isinstance(item, str) and not _is_told(item))
        secret = next(filter(None, (_named(rules, title, item) for title in titles)), None) if holds else None
        if secret is not None:
            yield key, f"is {secret}: {REMEDY}"


def _arguments(rules: Rules, items: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """`["--password", "…"]`, `["-u", "user:…"]`."""
    for index, item in enumerate(items[:-1]):
        if not isinstance(item, str) or item[:1] != "-" or not OPTION.fullmatch(item):
            continue
        following = items[index + 1]
        if isinstance(following, str) and (following[:1] == "-" or is_placeholder(following)):
            continue
        secret = _named(rules, item, following)
        if secret is None and item in ("-u", "--user") and isinstance(following, str):
            login = following.partition(":")[2]
            secret = PASSWORD if login and not login.isdecimal() and not is_placeholder(login) else None
        if secret is not None:
            yield index + 1, f"is {secret}: {REMEDY}"


def _named(rules: Rules, title: str, value: Any) -> str | None:
    """What a value is that stands beside its name; None if no secret has a value of this type."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return None
    name = field_name(title)
    if _is_allowed(rules, name):
        return None
    if rules.forbidden and ends_with(name.words, rules.forbidden):
        return "what must not be stored"
    secret = name.meaning if name.meaning in CREDENTIALS else None
    return None if isinstance(value, int | float) and secret != PASSWORD else secret


def _spelt(names: str) -> frozenset[str]:
    return frozenset(form for name in names.split() for form in (name, name.capitalize(), name.upper()))


TITLES = _spelt("name key field header option parameter param variable var property attribute k")
CONTENTS = _spelt("value values val v")
TEXTS = _spelt("text content answer")
NAME = re.compile(r"[A-Za-z_][\w-]{0,63}", re.ASCII)
_TYPES = frozenset(
    [
        "text",
        "varchar",
        "char",
        "date",
        "number",
        "integer",
        "boolean",
        "email",
        "hidden",
        "float",
        "uuid",
        "json",
        "object",
        "array",
    ]
)
OPTION = re.compile(r"--?[A-Za-z][\w-]{0,63}", re.ASCII)
# What a text under the name of a flag or a number may be.
FLAG = re.compile(
    r"[+-]?\d[\d.,:TZ-]{0,30}(?: ?[a-z%]{1,12})?|[yn]|on|off|optional|required|never|always|maybe|unknown|allowed",
    re.ASCII | re.IGNORECASE,
)
NAMELESS = field_name("")


def _secret(name: FieldName, value: str | float) -> str | None:
    if isinstance(value, int | float):
        value = str(int(value)) if 0 < abs(value) < 1 << 63 else ""
        value = value.removeprefix("-")
    return secret_in(value, card=name.card)
