"""What looks like a secret, by the shape of a text. Linear in its length, whatever is in it."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dutiful.core.sensitive_names import CREDENTIALS, HEADER, TOKEN, meaning

REDACTED = "[redacted]"


def redact(text: str) -> str:
    """The text with every secret in it taken out: keys, tokens, passwords of URLs, card numbers, `password=…`.

    To be done before a text is cut: half a secret may have lost its shape.
    """
    for shape in _shapes_of(text):
        text = shape.pattern.sub(shape.cover, text)
    text = _without(text, [(found.start, found.end) for found in _assignments(text)])
    return _CARD.sub(lambda match: REDACTED if is_card(match[0]) else match[0], text)


def secret_in(text: str) -> str | None:
    """What kind of secret the text has in it ("a JWT"), if any."""
    for shape in _shapes_of(text):
        if any(shape.judge(match) for match in shape.pattern.finditer(text)):
            return shape.name
    for found in _assignments(text):
        # A value that is only written after a colon may be prose: `secret: nobody knows`.
        if found.sure:
            return found.meaning
    return "a card number" if any(is_card(match[0]) for match in _CARD.finditer(text)) else None


def is_card(text: str) -> bool:
    """Whether these digits are a number as issuers of cards give out, with its check digit."""
    digits = text.replace(" ", "").replace("-", "")
    if not any(len(digits) in lengths and low <= int(digits[: len(str(low))]) <= high for low, high, lengths in _CARDS):
        return False
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


# --- shapes

Judge = Callable[[re.Match[str]], bool]


class Shape(NamedTuple):
    """One kind of secret. What its pattern looks at, no second try looks at again, so no text makes it slow; of what
    it finds, the judge lets go what is not meant."""

    name: str
    marks: tuple[str, ...]  # one of these, in lower case, is in every text that has one
    pattern: re.Pattern[str]
    judge: Judge

    def cover(self, match: re.Match[str]) -> str:
        if not self.judge(match):
            return match[0]
        around = match.groupdict()
        return f"{around.get('before', '')}{REDACTED}{around.get('after', '')}"


def _shapes_of(text: str) -> list[Shape]:
    lowered = text.lower()
    if not _ANY_MARK.search(lowered):
        return []
    return [shape for shape in SHAPES if any(mark in lowered for mark in shape.marks)]


def _shape(name: str, marks: str, pattern: str, judge: Judge = lambda _: True, flags: int = 0) -> Shape:
    return Shape(name, tuple(marks.split()), re.compile(pattern, re.ASCII | flags), judge)


def _is_jwt(match: re.Match[str]) -> bool:
    return match["rest"] is not None and len(match["head"]) >= 12 and len(match[0]) >= 30


def _is_bearer(match: re.Match[str]) -> bool:
    """Not of "bearer instruments": a token has a digit or a capital within, or is longer than words are."""
    token = match["token"]
    return len(token) >= 24 or any(c.isdigit() for c in token) or token[1:] != token[1:].lower()


def _is_basic(match: re.Match[str]) -> bool:
    try:
        return b":" in base64.b64decode(match["token"], validate=True)
    except (binascii.Error, ValueError):
        return False


SHAPES: tuple[Shape, ...] = (
    _shape(
        "a private key",
        "-----begin",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{0,60}-----|\Z)",
        flags=re.DOTALL,
    ),
    # A run without its dots is eaten, too: it need not be looked at again from each `eyJ` in it.
    _shape("a JWT", "eyj", r"(?P<head>eyJ[\w-]*+)(?P<rest>\.[\w-]++\.[\w-]*+(?:\.[\w-]++){0,2}+)?+", _is_jwt),
    _shape("an AWS key", "akia asia", r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _shape(
        "a GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"gh[pousr]_[A-Za-z0-9]{30,}+|github_pat_\w{22,}+"
    ),
    _shape("a GitLab token", "glpat-", r"glpat-[\w-]{20,}+"),
    _shape("a Slack token", "xox xapp-", r"(?:xox[abdeoprs]|xapp)-[A-Za-z0-9-]{10,}+"),
    _shape("a Slack webhook", "hooks.slack.com", r"(?P<before>hooks\.slack\.com/services/)[\w/]{20,}+"),
    _shape("a Stripe key", "k_live_ k_test_", r"(?<![A-Za-z0-9])[sr]k_(?:live|test)_[A-Za-z0-9]{10,}+"),
    _shape("a webhook secret", "whsec_", r"whsec_[\w+/=-]{16,}+"),
    _shape("a Google key", "aiza ya29. gocspx-", r"AIza[\w-]{35}|ya29\.[\w-]{20,}+|GOCSPX-[\w-]{20,}+"),
    _shape("a SendGrid key", "sg.", r"(?<![A-Za-z0-9])SG\.[\w-]{16,}+\.[\w-]{16,}+"),
    _shape(
        "an API key",
        "sk- npm_ pypi- hf_ dop_v1_ shpat_ age-secret-key-",
        r"(?<![A-Za-z0-9])(?:sk-(?:[a-z0-9]{1,12}-){0,3}[A-Za-z0-9_]{20,}+[\w-]*+|npm_[A-Za-z0-9]{36}|pypi-[\w-]{40,}+"
        r"|hf_[A-Za-z0-9]{30,}+|dop_v1_[a-f0-9]{64}|shpat_[a-fA-F0-9]{32}|AGE-SECRET-KEY-1[A-Z0-9]{50,}+)",
    ),
    _shape(
        "a bearer token",
        "bearer",
        r"(?P<before>\bbearer[ \t]{1,4})(?P<token>[\w.~+/-]{8,}+=*+)",
        _is_bearer,
        re.IGNORECASE,
    ),
    _shape(
        "a password",
        "basic",
        r"(?P<before>\bbasic[ \t]{1,4})(?P<token>[A-Za-z0-9+/]{6,}+=*+)",
        _is_basic,
        re.IGNORECASE,
    ),
    _shape(
        "a URL with a password",
        "://",
        r"(?P<before>://[^\s/@:\"'<>]*+:)(?P<password>[^\s/\"'<>]+)(?P<after>@)",
        lambda match: not _is_placeholder(match["password"]),
    ),
)

_ANY_MARK = re.compile("|".join(re.escape(mark) for shape in SHAPES for mark in shape.marks))

# The first digits from … to, and how many there are in all.
_CARDS = (
    (4, 4, (13, 16, 19)),
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
# In one piece or in the groups that are printed on cards; not as a part of a word, a fraction or a longer number.
_CARD = re.compile(
    r"(?<![\w.])(?:\d{13,19}|\d{4}(?P<a>[ -])\d{4}(?P=a)\d{4}(?P=a)\d{4}(?:(?P=a)\d{3})?"
    r"|\d{4}(?P<b>[ -])\d{6}(?P=b)\d{4,5})(?!\w|\.\d)",
    re.ASCII,
)


# --- names with their values: `token=…`, `"api_key": "…"`, `Cookie: …`


class _Assigned(NamedTuple):
    start: int  # of the value
    end: int
    meaning: str
    sure: bool  # it is a value, and not a word of a sentence


_CUE = re.compile(r"pass|pwd|secret|token|key|auth|cookie|cred|jwt|otp|cvv|cvc")
_NAME = re.compile(
    r"(?<![\w-])((?:(?:api|access|secret|private|signing|encryption) )?[a-z_][\w-]{1,63}+)"
    r"\\{0,4}[\"']?[ \t]{0,3}(?P<sign>:=?|={1,3}>?)[ \t]{0,3}",
    re.ASCII | re.IGNORECASE,
)
_VALUE = re.compile(
    r"[bru]{0,2}(?:\\{1,4}[\"'](?P<escaped>[^\"'\n]*+)|\"(?P<double>(?:[^\"\\\n]|\\.)*+)|'(?P<single>(?:[^'\\\n]|\\.)*+))"
    r"|(?P<bare>[^\s,;&\"'<>(){}\[\]]++)(?P<code>[(\[]?)",
    re.ASCII | re.IGNORECASE,
)
_LINE = re.compile(r"[^\n\"']*+")
_PLACEHOLDER = re.compile(
    r"[*x.•]*|[$%{<?].*|\[redacted\]|none|null|nil|true|false|undefined|str|int|bytes|bool|any|string", re.DOTALL
)


def _assignments(text: str) -> Iterator[_Assigned]:
    if not _CUE.search(text.lower()):
        return
    end = 0
    for name in _NAME.finditer(text):
        said = meaning(name[1])
        if name.start() < end or said not in CREDENTIALS:
            continue
        value = _VALUE.match(text, name.end())
        if value is None or value["code"]:
            continue
        group = str(value.lastgroup if value["bare"] is None else "bare")
        start, end = value.span(group)
        if said is HEADER and group == "bare":
            found = _LINE.match(text, start)
            end = found.end() if found else end
        word = text[start:end]
        if _is_placeholder(word):
            continue
        spoken = group == "bare" and name["sign"] == ":"
        if spoken and said is TOKEN and len(word) < 16 and not any(c.isdigit() for c in word):
            continue  # "unexpected token: comma"
        yield _Assigned(start, end, said, not spoken and len(word) >= 4)


def _is_placeholder(word: str) -> bool:
    return _PLACEHOLDER.fullmatch(word.lower()) is not None


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    if not spans:
        return text
    pieces, last = [], 0
    for start, end in spans:
        pieces += [text[last:start], REDACTED]
        last = end
    return "".join([*pieces, text[last:]])
