"""Numbers of payment cards in a text."""

import re
from collections.abc import Iterator
from typing import NamedTuple

# The first digits from … to, and how many there are in all.
_ISSUERS = (
    (4, 4, (16, 19)),
    (51, 55, (16,)),
    (2221, 2720, (16,)),
    (34, 34, (15,)),
    (37, 37, (15,)),
    (6011, 6011, (16, 19)),
    (644, 659, (16, 19)),
    (300, 305, (14,)),
    (36, 36, (14,)),
    (38, 39, (14,)),
    (3528, 3589, (16, 17, 18, 19)),
    (62, 62, (16, 17, 18, 19)),
)
# In one piece or in the groups that are printed on cards; not as a part of a word, a fraction, a telephone number or a
# longer number.
_NUMBER = re.compile(
    r"(?<![\w.+])(?:(?P<bare>\d{14,19})|\d{4}(?P<a>[ .-])\d{4}(?P=a)\d{4}(?P=a)\d{4}(?:(?P=a)\d{3})?"
    r"|\d{4}(?P<b>[ .-])\d{6}(?P=b)\d{4,5})(?!\w|\.\d)",
    re.ASCII,
)
_TALK = re.compile(
    r"(?<![a-z])(?:credit|debit|gift)?[ _-]?cards?(?![a-z])|cardn|visa|amex|american express|(?<![a-z])(?:cc|pan|pay"
    r"|paid|payment|charged?)(?![a-z])",
    re.IGNORECASE,
)
_EARSHOT = 60
_COMMON = (15, 16)  # digits


class Card(NamedTuple):
    start: int
    end: int
    sure: bool  # not some other number that only happens to be like one


def cards(text: str, *, named: bool = False) -> Iterator[Card]:
    """What may be cards; `named` says that the text is known to be about one.

    One number in a hundred has the digits of a card, so without groups it is sure only if there is talk of one.
    """
    for match in _NUMBER.finditer(text):
        digits = match[0].translate(_PARTS)
        if not _is_issued(digits):
            continue
        start, end = match.span()
        talked = named or _TALK.search(text, max(0, start - _EARSHOT), end + _EARSHOT) is not None
        if talked or match["bare"] is None or len(digits) in _COMMON:
            yield Card(start, end, talked or match["bare"] is None)


def _is_issued(digits: str) -> bool:
    """Whether an issuer gives out such numbers, and the check digit is right."""
    if not any(
        len(digits) in lengths and low <= int(digits[: len(str(low))]) <= high for low, high, lengths in _ISSUERS
    ):
        return False
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


_PARTS = str.maketrans("", "", " .-")
