"""Secrets known by their own shape: keys and tokens of well-known services, passwords in URLs, card numbers."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dutiful.core.redaction.assignments import is_placeholder

Judge = Callable[[re.Match[str]], bool]


class SecretShape(NamedTuple):
    """One kind of secret. Its pattern never reads a character twice, so no text makes it slow; `judge` drops false
    matches."""

    name: str
    marks: tuple[str, ...]  # in lower case; every text with such a secret contains one of them
    pattern: re.Pattern[str]
    judge: Judge


def shapes_of(text: str) -> list[SecretShape]:
    """The shapes that the text may contain."""
    lowered = text.lower()
    # Most names of fields are words, which only some marks are part of.
    if not (_WORD_MARK if lowered.isidentifier() else _ANY_MARK).search(lowered):
        return []
    return [shape for shape in SHAPES if any(mark in lowered for mark in shape.marks)]


def _shape(name: str, marks: str, pattern: str, judge: Judge = lambda _: True) -> SecretShape:
    return SecretShape(name, tuple(marks.split()), re.compile(pattern, re.ASCII), judge)


def _is_jwt(match: re.Match[str]) -> bool:
    return match["rest"] is not None and len(match["head"]) >= 12 and len(match[0]) >= 30


def _is_bearer(match: re.Match[str]) -> bool:
    """Whether it is a token, unlike "bearer instruments": with a digit or an inner capital, or longer than words."""
    token = match["token"]
    return len(token) >= 24 or any(c.isdigit() for c in token) or token[1:] != token[1:].lower()


def _is_basic(match: re.Match[str]) -> bool:
    try:
        return b":" in base64.b64decode(match["token"], validate=True)
    except (binascii.Error, ValueError):
        return False


def _is_random(match: re.Match[str]) -> bool:
    """Whether it looks random, unlike `sk-learn-models-of-2026`: digits and both cases, or a long run of them."""
    text = match[0][3:]
    mixed = text != text.lower() and text != text.upper()
    has_digit = any(c.isdigit() for c in text)
    return has_digit and (mixed or max(map(len, re.split("[-_]", text))) >= 20)


def _is_login(match: re.Match[str]) -> bool:
    return not match["token"].isdecimal() and not is_placeholder(match["token"])


def _is_mixed(match: re.Match[str]) -> bool:
    """Letters of both cases and digits; the longer forms are known by their beginning alone."""
    text = match["short"]
    return text is None or (any(c.isdigit() for c in text) and text != text.lower() and text != text.upper())


def _is_signature(match: re.Match[str]) -> bool:
    """Whether it has a digit, and is long, or a cloud's: known by its name, or by Azure's version in the same URL."""
    token, start, end = match["token"], match.start(), match.end()
    if not any(c.isdigit() for c in token):
        return False
    if len(token) >= 20 or match["cloud"] is not None:
        return True
    return _AZURE_VERSION.search(match.string, max(0, start - _QUERY), end + _QUERY) is not None


_AZURE_VERSION = re.compile(r"(?<![\w-])sv=\d{4}-\d\d-\d\d", re.ASCII)
_QUERY = 300  # characters of a URL's other parameters


def _is_user_token(match: re.Match[str]) -> bool:
    """Whether a URL's user is a token: a long one with a digit; in a web address also a short one that is no login."""
    token = match["token"]
    if len(token) >= 20:
        return any(c.isdigit() for c in token)
    return match["web"] is not None and len(_LETTERS_OR_DIGITS.findall(token)) >= 4


_LETTERS_OR_DIGITS = re.compile(r"[a-z]+|\d+", re.IGNORECASE)


SHAPES: tuple[SecretShape, ...] = (
    _shape(
        "a private key",
        "-----begin",
        r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{0,60}-----|\Z)",
    ),
    # A run without its dots is consumed, too, so that it is not read again from each `eyJ` in it.
    _shape("a JWT", "eyj", r"(?P<head>eyJ[\w-]*+)(?P<rest>\.[\w-]++\.[\w-]*+(?:\.[\w-]++){0,2}+)?+", _is_jwt),
    _shape("an AWS key", "akia asia", r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _shape(
        "a GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"gh[pousr]_[A-Za-z0-9]{30,}+|github_pat_\w{22,}+"
    ),
    _shape("a Dutiful token", "dtf_", r"dtf_[\w-]{16,}+"),
    _shape("a GitLab token", "glpat- glrt- gldt-", r"gl(?:pat|rt|dt)-[\w-]{20,}+"),
    _shape("a Slack token", "xox xapp-", r"(?:xox[abdeoprs]|xapp)-[A-Za-z0-9-]{10,}+"),
    _shape("a Slack webhook", "hooks.slack.com", r"(?P<before>hooks\.slack\.com/services/)[\w/]{20,}+"),
    _shape("a Stripe key", "k_live_ k_test_", r"(?<![A-Za-z0-9])[sr]k_(?:live|test)_[A-Za-z0-9]{10,}+"),
    _shape("a webhook secret", "whsec_", r"whsec_[\w+/=-]{16,}+"),
    _shape("a Google key", "aiza ya29. gocspx-", r"AIza[\w-]{35}|ya29\.[\w-]{20,}+|GOCSPX-[\w-]{20,}+"),
    _shape("a SendGrid key", "sg.", r"(?<![A-Za-z0-9])SG\.[\w-]{16,}+\.[\w-]{16,}+"),
    _shape(
        "an API key",
        "npm_ pypi- hf_ dop_v1_ shpat_ age-secret-key- glsa_ atatt3 dapi lin_api_ figd_ pmak- nrak- dckr_pat_ sbp_",
        r"(?<![A-Za-z0-9])(?:npm_[A-Za-z0-9]{36}|pypi-[\w-]{40,}+"
        r"|hf_[A-Za-z0-9]{30,}+|dop_v1_[a-f0-9]{64}|shpat_[a-fA-F0-9]{32}|AGE-SECRET-KEY-1[A-Z0-9]{50,}+"
        r"|glsa_[A-Za-z0-9]{32}_[a-f0-9]{8}|ATATT3[\w=-]{50,}+|dapi[a-f0-9]{32}|lin_api_[A-Za-z0-9]{30,}+"
        r"|figd_[\w-]{30,}+|PMAK-[a-f0-9]{24}-[a-f0-9]{34}|NRAK-[A-Z0-9]{27}|dckr_pat_[\w-]{20,}+|sbp_[a-f0-9]{40})",
    ),
    _shape(
        "a Vault token",
        "hvs. hvb. hvr. s.",
        r"(?<![\w.-])(?:hv[sbr]\.[\w-]{24,}+|s\.(?P<short>[A-Za-z0-9]{24})(?![\w.-]))",
        _is_mixed,
    ),
    _shape("a Telegram token", ":aa", r"(?<!\d)\d{8,10}:AA[\w-]{33}(?![\w-])"),
    _shape(
        "a signed URL",
        "signature= sig= x-amz-security-token=",
        r"(?i)(?P<before>(?<![\w-])(?:(?P<cloud>x-amz-signature|x-goog-signature|x-amz-security-token)|signature|sig)=)"
        r"(?P<token>[\w%+/=~.-]{6,}+)",
        _is_signature,
    ),
    _shape(
        "a Discord webhook",
        "discord.com/api discordapp.com/api",
        r"(?P<before>discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/\d{5,25}/)[\w-]{20,}+",
    ),
    _shape("an API key", "sk-", r"(?<![A-Za-z0-9])sk-[\w-]{20,}+", _is_random),
    _shape("a bearer token", "bearer", r"(?i)(?P<before>\bbearer[ \t]{1,4})(?P<token>[\w.~+/-]{8,}+=*+)", _is_bearer),
    _shape("a password", "basic", r"(?i)(?P<before>\bbasic[ \t]{1,4})(?P<token>[A-Za-z0-9+/]{6,}+=*+)", _is_basic),
    _shape(
        "a URL with a password",
        "://",
        # A URL allows no slash in a password, but people write it; what precedes it then is no port.
        r"(?P<before>://[^\s/@:\"'<>]*+:)(?P<password>(?!\d{1,5}/)(?:[^\s/@\"'<>]*+/){0,3}[^\s/\"'<>]+)(?P<after>@)",
        lambda match: not is_placeholder(match["password"]),
    ),
    _shape(
        "a URL with a token",
        "://",
        r"(?P<before>(?P<web>https?)?://)(?P<token>[\w-]{8,}+)(?P<after>@)",
        _is_user_token,
    ),
    _shape(
        "a password",
        "-u --user",
        r"(?P<before>(?<!\S)(?:-u|--user)[ \t=]{1,3}[^\s:\"']{1,64}:)(?P<token>[^\s\"']++)",
        _is_login,
    ),
)

_MARKS = sorted({mark for shape in SHAPES for mark in shape.marks})
_ANY_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_WORD_MARK = re.compile("|".join(mark for mark in _MARKS if mark.isidentifier()))


# --- secret keys of AWS, which have no mark

_AWS_SECRET = re.compile(r"(?<![A-Za-z0-9/+=_.-])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_-])")
_AWS_WORD = re.compile(r"aws|amazon|secret|akia|asia", re.IGNORECASE)
_AWS_LENGTH = 40
_NEARBY = 60  # characters
_CLASS = re.compile(r"[a-z]+|[A-Z]+|\d+|[/+]+")
_LEAST_RUNS = 16  # of one class; random text has about 26, a path of words a dozen


def find_aws_secrets(text: str, *, sure: bool = False) -> Iterator[re.Match[str]]:
    """Forty random characters. Ids may be so, too: it takes a slash or plus, which few have, or a word near them.

    `sure`: it takes a word, because thirty bytes of anything look the same in Base64.
    """
    if len(text) < _AWS_LENGTH:
        return
    for match in _AWS_SECRET.finditer(text):
        found = match[0]
        if found in (found.lower(), found.upper()) or len(_CLASS.findall(found)) < _LEAST_RUNS:
            continue
        near = (max(0, match.start() - _NEARBY), match.start()), (match.end(), match.end() + _NEARBY)
        if (not sure and ("/" in found or "+" in found)) or any(_AWS_WORD.search(text, *span) for span in near):
            yield match


# --- card numbers

# The numbers' lengths, and their first digits from … to.
_ISSUERS = (
    ((14,), ((300, 305), (36, 36), (38, 39))),
    ((15,), ((34, 34), (37, 37))),
    ((16,), ((51, 55), (2221, 2720))),
    ((16, 19), ((4, 4), (6011, 6011), (644, 659))),
    ((16, 17, 18, 19), ((3528, 3589), (62, 62))),
)
# In one piece or in the groups printed on cards; not part of a word, a fraction, a telephone number or a longer number.
_CARD_NUMBER = re.compile(
    r"(?<![\w.+])(?:(?P<bare>\d{14,19})|\d{4}(?P<a>[ .-])\d{4}(?P=a)\d{4}(?P=a)\d{4}(?:(?P=a)\d{3})?"
    r"|\d{4}(?P<b>[ .-])\d{6}(?P=b)\d{4,5})(?!\w|\.\d)",
    re.ASCII,
)
_CARD_WORD = re.compile(
    r"(?<![a-z])(?:credit|debit|gift)?[ _-]?cards?(?![a-z])|cardn|visa|amex|american express|(?<![a-z])(?:cc|pan|pay"
    r"|paid|payment|charged?)(?![a-z])",
    re.IGNORECASE,
)
_SHORTEST_CARD = 14
_COMMON_LENGTHS = (15, 16)


class Card(NamedTuple):
    start: int
    end: int
    sure: bool  # not another number that only happens to look like one


def find_cards(text: str, *, named: bool = False) -> Iterator[Card]:
    """Finds possible card numbers; `named`: the text is known to be about one.

    One number in a hundred passes a card's checks, so one without groups is sure only if a word nearby speaks of cards.
    """
    if len(text) < _SHORTEST_CARD:
        return
    for match in _CARD_NUMBER.finditer(text):
        digits = match[0].translate(_SEPARATORS)
        if not _is_issued(digits):
            continue
        start, end = match.span()
        about_cards = named or _CARD_WORD.search(text, max(0, start - _NEARBY), end + _NEARBY) is not None
        if about_cards or match["bare"] is None or len(digits) in _COMMON_LENGTHS:
            yield Card(start, end, about_cards or match["bare"] is None)


def _is_issued(digits: str) -> bool:
    """Whether an issuer gives out such numbers, and the check digit is right."""
    ranges = (one for lengths, some in _ISSUERS if len(digits) in lengths for one in some)
    if not any(low <= int(digits[: len(str(low))]) <= high for low, high in ranges):
        return False
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


_SEPARATORS = str.maketrans("", "", " .-")
