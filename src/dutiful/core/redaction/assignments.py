"""Finds names that mean a secret, with their values: `token=…`, `"api_key": "…"`, `--password …`, `<secret>…`."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from dutiful.core.redaction.sensitive_names import CREDENTIALS, HEADER, TOKEN, meaning


class Assignment(NamedTuple):
    start: int  # of the value
    end: int
    meaning: str
    sure: bool  # a value, not a part of a sentence


def find_assignments(text: str) -> Iterator[Assignment]:
    if not _CUE.search(text.lower()):
        return
    yield from _signed(text)
    yield from _marked(text)
    yield from _keyed(text)


def is_placeholder(text: str) -> bool:
    """Whether it only stands for a value."""
    return PLACEHOLDER.fullmatch(text) is not None or _VARIABLE.fullmatch(text) is not None


_CUE = re.compile(r"pass|pw|kennwort|secret|token|key|auth|cookie|cred|jwt|otp|cvv|cvc")
# Matched as a whole, because a password may begin with any of these characters.
PLACEHOLDER = re.compile(
    r"[*x.•]*|\[redacted\]|none|null|nil|true|false|yes|no|undefined|str|int|bytes|bool|any|string|\?|%[sdr]"
    r"|<[^<>]*>|\{[^{}]*\}|\{\{[^{}]*\}\}|\$\{[^{}]*\}|\$\([^()]*\)|%\([^()]*\)[sdr]",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"\$(?:[A-Z_][A-Z0-9_]*|\d)|%[A-Z_][A-Z0-9_]*%")


# --- name, sign, value

_NAME = re.compile(
    r"(?:(?P<line>^[ \t]{0,40}(?:-[ \t])?)|(?<![\w-])-{0,3})"
    r"(?P<name>(?:(?:api|access|secret|private|signing|encryption) )?[a-z_][\w-]{1,63}+)"
    r"\\{0,4}[\"']?[ \t]{0,3}(?P<sign>:=?|={1,3}>?|->)[ \t]{0,3}",
    re.ASCII | re.IGNORECASE | re.MULTILINE,
)
_VALUE = re.compile(
    r"[bru]{0,2}(?:\\{1,4}[\"'](?P<escaped>[^\"'\n]*+)|\"(?P<double>(?:[^\"\\\n]|\\.)*+)|'(?P<single>(?:[^'\\\n]|\\.)*+))"
    r"|(?P<bare>[^\s,;&\"'<>]++)",
    re.ASCII | re.IGNORECASE,
)
_BELOW = re.compile(r"(?:[|>][+-]?[ \t]{0,3})?\n[ \t]{1,40}")  # a YAML value on the next line
# The rest of a header, which ends where a quote around it does, but not at those of a value: `sid="…"`.
_LINE = re.compile(r"(?:[^\n\"']++|(?:(?<==)|(?<==\\))(?:\"[^\"\n]*+\"|'[^'\n]*+'))*+")
_CODE = re.compile(r"[a-z_][\w.]*([(\[])", re.ASCII | re.IGNORECASE)
_CLOSING = {"(": ")", "[": "]"}
_CALL = 200  # characters at most


def _signed(text: str) -> Iterator[Assignment]:
    end = 0
    for name in _NAME.finditer(text):
        secret = meaning(name["name"])
        if name.start() < end or secret not in CREDENTIALS:
            continue
        below = _BELOW.match(text, name.end()) if name["sign"] == ":" else None
        value = _VALUE.match(text, name.end() if below is None else below.end())
        if value is None:
            continue
        group = str(value.lastgroup)
        start, end = value.span(group)  # never read again, even if it is no secret
        bare = group == "bare"
        if secret is HEADER and bare:
            found = _LINE.match(text, start)
            end = found.end() if found else end
            stop = end
        else:
            start, stop = _inside(text, start, end) if bare else (start, end)
        content = text[start:stop]
        if is_placeholder(content) or (bare and _is_code(text, start)):
            continue
        prose = bare and name["sign"] == ":"
        if prose and secret is TOKEN and len(content) < 16 and not any(c.isdigit() for c in content):
            continue  # "unexpected token: comma"
        # After a colon, it may be prose, `secret: not known`, unless the line has nothing else.
        alone = name["line"] is not None and text[end : end + 1] in ("", "\n", "\r") and not content.isalpha()
        # `--password=h` is written for a password only; `pw=h` is a part of many texts.
        option = name["sign"] == "=" and "--" in text[name.start() : name.start("name")]
        yield Assignment(start, stop, secret, option or (len(content) >= 4 and (alone or not prose)))


def _inside(text: str, start: int, end: int) -> tuple[int, int]:
    """The value without brackets around or after it, as in `f(password=abc)`, `password=[abc]`."""
    content = text[start:end]
    core = content.rstrip(")]}")
    opened = sum(map(content.count, "([{"))
    closed = sum(map(content.count, ")]}"))
    end -= max(0, min(len(content) - len(core), closed - opened))
    if not is_placeholder(text[start:end]) and text[start] + text[end - 1] in ("()", "[]"):
        return start + 1, end - 1
    return start, end


def _is_code(text: str, start: int) -> bool:
    """`get_password(…)`, `environ[…]`: not a value, but where one comes from."""
    opening = _CODE.match(text, start, start + _CALL)
    if opening is None:
        return False
    close = text.find(_CLOSING[opening[1]], opening.end(), opening.end() + _CALL)
    return close >= 0 and "\n" not in text[opening.end() : close]


# --- by other marks: `<password>…</password>`, `('password', '…')`, `--password …`, `"name": "password", "value": "…"`

_MARKED = re.compile(
    r"<(?P<tag>[a-z_][\w.:-]{1,63}+)(?:[ \t][^<>\n]{0,200}+)?+>(?P<text>[^<]++)</"
    r"|[(\[][bru]?(?P<a>[\"'])(?P<first>[a-z_][\w-]{1,63}+)(?P=a),[ ]?[bru]?(?P<b>[\"'])"
    r"(?P<second>[^\"'\n]{1,200}+)(?P=b)[)\]]"
    r"|(?<![\w-])--(?P<option>[a-z][\w-]{1,63}+)[ \t]{1,3}(?![\s-])(?P<argument>[^\s,;&\"'<>]++)"
    # As Python and JSON print a list of arguments, and a pair.
    r"|[\"']--?(?P<flag>[a-z][\w-]{1,63}+)\\{0,4}[\"'],[ ]?\\{0,4}[\"'](?P<next>[^\"'\n-][^\"'\n]{0,200}+)[\"']"
    r"|(?:name|key|field|header)\\{0,4}[\"']:[ ]{0,3}\\{0,4}[\"'](?P<title>[a-z_][\w-]{1,63}+)\\{0,4}[\"'],[ ]{0,3}"
    r"\\{0,4}[\"']value\\{0,4}[\"']:[ ]{0,3}\\{0,4}[\"'](?P<value>[^\"'\n]{1,200}+)[\"']",
    re.ASCII | re.IGNORECASE,
)


def _marked(text: str) -> Iterator[Assignment]:
    for match in _MARKED.finditer(text):
        name, group = next(pair for pair in _PAIRS if match[pair[0]] is not None)
        secret, value = meaning(match[name]), match[group].strip()
        if secret in CREDENTIALS and not is_placeholder(value):
            yield Assignment(*match.span(group), secret, name != "first" and len(value) >= 4)


_PAIRS = (("tag", "text"), ("first", "second"), ("option", "argument"), ("flag", "next"), ("title", "value"))


# --- keys in a database's error: `Key (tenant, token)=(…) already exists.`

_KEYED = re.compile(r"\bkey \((?P<names>[^()\n]{1,200}+)\)=\((?P<values>[^\n]*+)", re.ASCII | re.IGNORECASE)


def _keyed(text: str) -> Iterator[Assignment]:
    for match in _KEYED.finditer(text):
        secret = next((secret for name in match["names"].split(",") if (secret := meaning(name)) in CREDENTIALS), None)
        start, end = match.span("values")
        close = text.rfind(")", start, end)
        end = end if close < 0 else close
        if secret is not None and not is_placeholder(text[start:end]):
            yield Assignment(start, end, secret, True)
