"""JSON that every store can hold: what is refused here would be refused, or changed, by a database."""

import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from dutiful.core.errors import PayloadInvalid
from dutiful.core.place import Place, spell
from dutiful.core.readable import DEEPEST, nested_deeper

REPLACED = "\N{REPLACEMENT CHARACTER}"


def _to_builtin(value: Any) -> Any:
    """Pydantic models, where they are installed, speak for themselves."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    raise NotImplementedError(f"{type(value).__module__}.{type(value).__qualname__}")


_encoder = msgspec.json.Encoder(enc_hook=_to_builtin)


def encode(value: Any, *, what: str, limit: int) -> str:
    """`value` as JSON text; `what` is what an error calls it ("payload", "result")."""
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
    if len(data) > 2 * DEEPEST and nested_deeper(data.decode()):
        raise PayloadInvalid(f"the {what} is nested deeper than {DEEPEST} levels; store a reference instead")
    if b"\\u0000" in data or b"null" in data:
        # Either may be innocent (an escaped backslash, a None), so look closely only now.
        for place, item in _leaves(msgspec.to_builtins(value, enc_hook=_to_builtin)):
            _check_leaf(place, item, what)
    return data.decode()


def _check_leaf(place: Place | None, item: Any, what: str) -> None:
    if isinstance(item, str) and "\0" in item:
        path = spell(place, what)
        raise PayloadInvalid(f"{path} has a NUL character in it; remove it, or encode the bytes as Base64", path)
    if isinstance(item, float) and not math.isfinite(item):
        path = spell(place, what)
        raise PayloadInvalid(f"{path} is {item}, which JSON does not have; use None or a text", path)


def _leaves(value: Any) -> Iterator[tuple[Place | None, Any]]:
    """Every name and value that is not made of others, and where."""
    rest: list[tuple[Place | None, Any]] = [(None, value)]
    while rest:
        place, value = rest.pop()
        match value:
            case dict():
                yield from ((place, key) for key in value)
                rest += [((place, str(key)), item) for key, item in value.items()]
            case list() | tuple():
                rest += [((place, index), item) for index, item in enumerate(value)]
            case _:
                yield place, value


def clean(text: str, limit: int) -> str:
    """Text from outside (an error's message) made storable: no NUL, no lone surrogate, no endless length."""
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text):,} characters in all)"
    return text.replace("\0", REPLACED).encode("utf-8", "replace").decode()


def check_name(value: str, what: str, limit: int = 200) -> str:
    """A name people give: of a kind, a queue, a tenant, a key."""
    if not isinstance(value, str) or not value or len(value) > limit or value != value.strip():
        raise PayloadInvalid(
            f"{what} {value!r:.80} must be a text of 1 to {limit} characters without outer spaces", what
        )
    if clean(value, limit) != value:
        raise PayloadInvalid(f"{what} {value!r:.80} has a NUL or a lone surrogate in it; remove it", what)
    if _UNSEEN.search(value):
        raise PayloadInvalid(
            f"{what} {value!a:.80} has a character in it that nobody sees (a line break, a tab, a change of the "
            "direction of writing): remove it, or it would read as another one in lists and logs",
            what,
        )
    return value


_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
