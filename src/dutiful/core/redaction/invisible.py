"""Invisible characters, which would hide a secret from patterns and deceive the reader of a list."""

import re
import sys
import unicodedata

# Letters and marks without a shape, which Unicode does not count among the formatting characters.
FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")
# They choose between shapes of the character before them, as emoji do.
SELECTORS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
UNSEEN = FILLERS | SELECTORS
_LAYOUT = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85"  # they part words
_ESCAPE = re.compile(r"\\{1,4}(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_MOST = 20_000


def visible(text: str) -> str:
    """The text as a reader takes it: without invisible characters, also escaped ones, and `ｐａｓｓ` written as `pass`.

    Character by character, because to normalize a whole text takes time quadratic in its combining marks.
    """
    if "\\" in text:
        text = _ESCAPE.sub(_unescaped, text)
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_SEEN)


def _unescaped(escape: re.Match[str]) -> str:
    """`\\u200b`, as Python's repr and JSON write it, is removed; what can be seen stays."""
    code = int(escape[escape.lastindex or 0], 16)
    return "" if code <= sys.maxunicode and not _SEEN[code] else escape[0]


class _Seen(dict[int, str]):
    """What each character is seen as; found when it is first met."""

    def __missing__(self, code: int) -> str:
        if len(self) > _MOST:
            self.clear()
        self[code] = seen = _seen(chr(code))
        return seen


def _seen(character: str) -> str:
    if character in _LAYOUT:
        return character
    category = unicodedata.category(character)
    if category in ("Cc", "Cf") or character in UNSEEN:
        return ""
    if category in ("Zs", "Zl", "Zp"):
        return " " if category == "Zs" else "\n"
    compatible = unicodedata.normalize("NFKC", character)
    return compatible if compatible.isascii() else character


_SEEN = _Seen()
