"""Secrets that are known by their own shape: keys and tokens of well-known services, passwords of URLs."""

import base64
import binascii
import re
from collections.abc import Callable
from typing import NamedTuple

from dutiful.core.assigned import is_placeholder

Judge = Callable[[re.Match[str]], bool]


class Shape(NamedTuple):
    """One kind of secret. What its pattern looks at, no second try looks at again, so no text makes it slow; of what
    it finds, the judge lets go what is not meant."""

    name: str
    marks: tuple[str, ...]  # one of these, in lower case, is in every text that has one
    pattern: re.Pattern[str]
    judge: Judge


def shapes_of(text: str) -> list[Shape]:
    """Those that the text may have in it."""
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


def _is_random(match: re.Match[str]) -> bool:
    """Not `sk-learn-models-of-2026`: letters of both cases and digits, or a long run of them."""
    text = match[0][3:]
    mixed = text != text.lower() and text != text.upper()
    has_digit = any(c.isdigit() for c in text)
    return has_digit and (mixed or max(map(len, re.split("[-_]", text))) >= 20)


def _is_login(match: re.Match[str]) -> bool:
    return not match["token"].isdecimal() and not is_placeholder(match["token"])


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
        "npm_ pypi- hf_ dop_v1_ shpat_ age-secret-key-",
        r"(?<![A-Za-z0-9])(?:npm_[A-Za-z0-9]{36}|pypi-[\w-]{40,}+"
        r"|hf_[A-Za-z0-9]{30,}+|dop_v1_[a-f0-9]{64}|shpat_[a-fA-F0-9]{32}|AGE-SECRET-KEY-1[A-Z0-9]{50,}+)",
    ),
    _shape("an API key", "sk-", r"(?<![A-Za-z0-9])sk-[\w-]{20,}+", _is_random),
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
        # A slash in it is one too many for a URL, but people write it; what is then before it is no port.
        r"(?P<before>://[^\s/@:\"'<>]*+:)(?P<password>(?!\d{1,5}/)(?:[^\s/@\"'<>]*+/){0,3}[^\s/\"'<>]+)(?P<after>@)",
        lambda match: not is_placeholder(match["password"]),
    ),
    _shape(
        "a URL with a token",
        "://",
        r"(?P<before>://)(?P<token>[\w-]{20,}+)(?P<after>@)",
        lambda match: any(c.isdigit() for c in match["token"]),
    ),
    _shape(
        "a password",
        "-u --user",
        r"(?P<before>(?<!\S)(?:-u|--user)[ \t=]{1,3}[^\s:\"']{1,64}:)(?P<token>[^\s\"']++)",
        _is_login,
    ),
)

_ANY_MARK = re.compile("|".join(re.escape(mark) for shape in SHAPES for mark in shape.marks))
