"""Takes secrets out of texts, and finds them in payloads, in time linear in a text's length."""

import functools
import re
from typing import Any

from dutiful.core.redaction.assignments import find_assignments
from dutiful.core.redaction.invisible import visible
from dutiful.core.redaction.secret_shapes import SecretShape, find_aws_secrets, find_cards, shapes_of

REDACTED = "[redacted]"
_LONGEST_NAME = 80  # characters shown
_LOOKED_AT = 500
_SHORTEST = 6  # characters of what can be known as a secret, as in `://:a@`
_VALUE = re.compile(r"\b([Vv]alue) (?:'.*'|\".*\"|-?[\d.]+)", re.DOTALL)
_UNKNOWN = re.compile(r"(unknown field) `(.*)`", re.DOTALL)


def redact(text: str) -> str:
    """The text without the secrets in it: keys, tokens, passwords of URLs, card numbers, `password=…`.

    Redact before a text is cut: half a secret may have lost its shape.
    """
    plain = visible(text)
    covered = plain
    for shape in shapes_of(plain):
        covered = shape.pattern.sub(lambda match, shape=shape: _cover(shape, match), covered)  # type: ignore[misc]
    covered = _without(covered, [found.span() for found in find_aws_secrets(covered)])
    covered = _without(covered, [(found.start, found.end) for found in find_assignments(covered)])
    covered = _without(covered, [(card.start, card.end) for card in find_cards(covered)])
    return text if covered == plain else covered


def redact_value(value: Any) -> Any:
    """A JSON value of which each text and each name is redacted."""
    match value:
        case str():
            return redact(value)
        case dict():
            return {redact_value(name): redact_value(item) for name, item in value.items()}
        case list() | tuple():
            return [redact_value(item) for item in value]
        case _:
            return value


def secret_in(text: str, *, card: bool = False) -> str | None:
    """What kind of secret the text contains ("a JWT"), if any; `card` says that a number in it would be a card's."""
    text = visible(text)
    if len(text) < _SHORTEST:
        return None
    for shape in shapes_of(text):
        if any(shape.judge(match) for match in shape.pattern.finditer(text)):
            return shape.name
    if text.isidentifier():
        return None  # as most names: all else has a sign in it, or begins with a digit
    if any(find_aws_secrets(text, sure=True)):
        return "an AWS secret key"
    for found in find_assignments(text):
        if found.sure:
            return found.meaning
    return "a card number" if any(one.sure for one in find_cards(text, named=card)) else None


def secret_in_name(name: str) -> str | None:
    """The same for the name of a field."""
    return _secret_in_name(name if len(name) <= _LOOKED_AT else visible(name)[:_LOOKED_AT])


def safe_name(name: str) -> str:
    """A field's name as an error may show it: without a secret, and of limited length."""
    if secret_in_name(name) is not None:
        return REDACTED
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    return shown.replace("\0", "").encode("utf-8", "replace").decode()


def safe_reason(message: str) -> str:
    """What msgspec says is wrong with a payload, without the payload's value, and with safe names."""
    message = _UNKNOWN.sub(lambda match: f"{match[1]} `{safe_name(match[2])}`", message)
    return _VALUE.sub(r"\1", message)


@functools.lru_cache(maxsize=4096)  # names are few, and come again and again
def _secret_in_name(name: str) -> str | None:
    return secret_in(name)


def _cover(shape: SecretShape, match: re.Match[str]) -> str:
    if not shape.judge(match):
        return match[0]
    around = match.groupdict()
    return f"{around.get('before', '')}{REDACTED}{around.get('after', '')}"


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    pieces, last = [], 0
    for start, end in sorted(spans):
        if end > last:
            pieces += [text[last:start], REDACTED] if start >= last else []
            last = end
    return "".join([*pieces, text[last:]])
