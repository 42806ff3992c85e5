"""What looks like a secret in a text. Linear in its length, whatever is in it."""

import re

from dutiful.core.assigned import assignments
from dutiful.core.cards import cards
from dutiful.core.secret_shapes import Shape, shapes_of

REDACTED = "[redacted]"


def redact(text: str) -> str:
    """The text with every secret in it taken out: keys, tokens, passwords of URLs, card numbers, `password=…`.

    To be done before a text is cut: half a secret may have lost its shape.
    """
    plain = _as_seen(text)
    covered = plain
    for shape in shapes_of(plain):
        covered = shape.pattern.sub(lambda match, shape=shape: _cover(shape, match), covered)  # type: ignore[misc]
    covered = _without(covered, [(found.start, found.end) for found in assignments(covered)])
    covered = _without(covered, [(card.start, card.end) for card in cards(covered)])
    return text if covered == plain else covered


def secret_in(text: str, *, card: bool = False) -> str | None:
    """What kind of secret the text has in it ("a JWT"), if any; `card` says that a number in it would be a card's."""
    text = _as_seen(text)
    for shape in shapes_of(text):
        if any(shape.judge(match) for match in shape.pattern.finditer(text)):
            return shape.name
    for found in assignments(text):
        if found.sure:
            return found.meaning
    return "a card number" if any(one.sure for one in cards(text, named=card)) else None


def _as_seen(text: str) -> str:
    """Without characters that nobody sees, which would hide a secret from us and not from others."""
    return text if text.isascii() else text.translate(_UNSEEN)


def _cover(shape: Shape, match: re.Match[str]) -> str:
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


_UNSEEN = str.maketrans(
    dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", "") | dict.fromkeys("\u00a0\u2007\u202f", " ")
)
