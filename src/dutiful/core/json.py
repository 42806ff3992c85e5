"""JSON as every store can hold it and as Python can read it back.

`encode` refuses what a database would refuse or change. `read` also accepts what only SQL can have stored, such as
numbers of thousands of digits: each part that Python cannot read is replaced by a text, so that the rest can be read.
"""

import math
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

import msgspec

from dutiful.core.errors import PayloadInvalid
from dutiful.core.redaction.redact import safe_name

DEEPEST = 200  # levels; a bound, because encoding recurses, and may begin deep in the stack
REPLACED = "\N{REPLACEMENT CHARACTER}"

# The location of the container (or None), and a name or index in it. It is spelt out for errors only, because locations
# are many, and each may lie deep.
Location: TypeAlias = tuple[Any, str | int]
T = TypeVar("T")

_ENDS = 10  # steps that are shown of a long path, at either end


def _to_builtin(value: Any) -> Any:
    """Pydantic models, where they are installed, convert themselves."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    raise NotImplementedError(f"{type(value).__module__}.{type(value).__qualname__}")


_encoder = msgspec.json.Encoder(enc_hook=_to_builtin)


def encode(value: Any, *, what: str, limit: int) -> str:
    """`value` as JSON text; errors call it `what` ("payload", "result")."""
    try:
        data = _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise PayloadInvalid(f"the {what} has a lone surrogate in it ({error}); encode such bytes as Base64") from error
    except RecursionError as error:
        raise PayloadInvalid(
            f"the {what} is nested too deeply, or contains itself; store a reference instead"
        ) from error
    except (TypeError, ValueError, NotImplementedError, OverflowError, msgspec.MsgspecError) as error:
        raise PayloadInvalid(
            f"the {what} cannot be written as JSON: {error}; pass plain data or a reference"
        ) from error
    if len(data) > limit:
        raise PayloadInvalid(
            f"the {what} has {len(data):,} bytes, more than the limit of {limit:,}; "
            "store it elsewhere and pass a reference"
        )
    if len(data) > 2 * DEEPEST and _too_deep(data.decode()):
        raise PayloadInvalid(f"the {what} is nested deeper than {DEEPEST} levels; store a reference instead")
    if b"\\u0000" in data or b"null" in data:
        # Either may be innocent (an escaped backslash, a None), so values are checked one by one only now.
        for location, leaf in _leaves(msgspec.to_builtins(value, enc_hook=_to_builtin)):
            _check_leaf(location, leaf, what)
    return data.decode()


def _check_leaf(location: Location | None, leaf: Any, what: str) -> None:
    if isinstance(leaf, str) and "\0" in leaf:
        path = path_of(location, what)
        raise PayloadInvalid(f"{path} has a NUL character in it; remove it, or encode the bytes as Base64", path)
    if isinstance(leaf, float) and not math.isfinite(leaf):
        path = path_of(location, what)
        raise PayloadInvalid(f"{path} is {leaf}, which JSON does not have; use None or a text", path)


def _leaves(value: Any) -> Iterator[tuple[Location | None, Any]]:
    """Every name, and every value that is no container, with its location."""
    rest: list[tuple[Location | None, Any]] = [(None, value)]
    while rest:
        location, value = rest.pop()
        match value:
            case dict():
                yield from ((location, key) for key in value)
                rest += [((location, str(key)), item) for key, item in value.items()]
            case list() | tuple():
                rest += [((location, index), item) for index, item in enumerate(value)]
            case _:
                yield location, value


def path_of(location: Location | None, root: str = "") -> str:
    """The path as in `account.owner`, `items[3]`; a secret used as a name is redacted."""
    steps: list[str | int] = []
    while location is not None:
        location, step = location
        steps.append(step)
    steps.reverse()
    if len(steps) > 3 * _ENDS:
        steps = [*steps[:_ENDS], "…", *steps[-_ENDS:]]
    path = root + "".join(f"[{step}]" if isinstance(step, int) else f".{safe_name(step)}" for step in steps)
    return path.removeprefix(".")


# --- text


def clean(text: str, limit: int) -> str:
    """Text from outside (an error's message) made storable: no NUL, no lone surrogate, at most `limit` characters."""
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text):,} characters in all)"
    return text.replace("\0", REPLACED).encode("utf-8", "replace").decode()


def check_name(value: str, what: str, limit: int = 200) -> str:
    """Checks a name that users choose: of a kind, a queue, a tenant, a key."""
    if not isinstance(value, str) or not value or len(value) > limit or value != value.strip():
        raise PayloadInvalid(
            f"{what} {value!r:.80} must be a text of 1 to {limit} characters without outer spaces", what
        )
    if clean(value, limit) != value:
        raise PayloadInvalid(f"{what} {value!r:.80} has a NUL or a lone surrogate in it; remove it", what)
    if _INVISIBLE.search(value):
        raise PayloadInvalid(
            f"{what} {value!a:.80} has an invisible character in it (a line break, a tab, a change of the direction of "
            "writing): remove it, or it would read as another one in lists and logs",
            what,
        )
    return value


_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


# --- reading what is stored

_MARK = "(cannot be read by Python: "
_TOO_DEEP = f'"{_MARK}nested too deeply)"'
_NO_NUMBER = f'"{_MARK}a number too large)"'
_NOT_JSON = f"{_MARK}not the JSON that belongs here)"
_NOT_UTF8 = f"{_MARK}not UTF-8)"
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]|-?\d[\d.eE+-]*')
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def read(text: str | None) -> Any:
    """Decodes any value; None if there is no text."""
    if text is None:
        return None
    try:
        return read_as(_ANY, text)
    except _UNREADABLE:
        return {"unreadable": _NOT_JSON}


def read_object(text: str | None) -> dict[str, Any] | None:
    value = read(text)
    return value if isinstance(value, dict) or value is None else {"unreadable": _NOT_JSON}


def read_objects(text: str | None) -> list[dict[str, Any]] | None:
    """Decodes a list of objects, such as errors."""
    value = read(text)
    if value is None or (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
        return value
    return [{"type": "Unreadable", "message": _NOT_JSON}]


def read_as(decoder: msgspec.json.Decoder[T], text: str) -> T:
    try:
        return decoder.decode(_shallow(text))
    except _UNREADABLE:
        return decoder.decode(_readable(text))


def decoded(raw: bytes) -> str:
    """Stored text that may not be UTF-8: what is not is replaced, and JSON as a whole, so that it is not sent again."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        match raw[:1]:
            case b"{":
                return f'{{"unreadable":"{_NOT_UTF8}"}}'
            case b"[":
                return f'[{{"unreadable":"{_NOT_UTF8}"}}]'
            case _:
                return raw.decode(errors="replace")


def check_whole(text: str, what: str) -> str:
    """Refuses to store JSON again if a part of it could not be read, because it would not be the same."""
    if _MARK in text:
        raise PayloadInvalid(
            f"a part of the {what} cannot be read by Python, so it cannot be sent again as it was", what
        )
    return text


def _readable(text: str) -> str:
    """`text` with a text in place of each number that is too large, and of all that is nested too deeply."""
    parts: list[str] = []
    kept = depth = 0

    def replace(until: int, replacement: str) -> None:
        parts.extend((text[kept:until], replacement))

    for token in _TOKEN.finditer(text):
        match token[0][0]:
            case "[" | "{":
                depth += 1
                if depth == DEEPEST + 1:
                    replace(token.start(), _TOO_DEEP)
            case "]" | "}":
                if depth == DEEPEST + 1:
                    kept = token.end()
                depth -= 1
            case '"':
                pass
            case _ if depth <= DEEPEST and not _is_number(token[0]):
                replace(token.start(), _NO_NUMBER)
                kept = token.end()
    return "".join((*parts, text[kept:]))


def _shallow(text: str) -> str:
    if _too_deep(text):
        raise RecursionError
    return text


def _too_deep(text: str) -> bool:
    """Whether `text` is nested too deeply; most texts have too few brackets for that, and are not parsed."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return False
    steps = (_STEPS.get(token[0][0], 0) for token in _TOKEN.finditer(text))
    return any(depth > DEEPEST for depth in accumulate(steps))


def _is_number(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except _UNREADABLE:
        return False
    return True
