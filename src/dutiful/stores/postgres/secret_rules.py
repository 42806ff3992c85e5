"""Writes the tables of `core.redaction` as SQL, so that the database finds in a payload what Python finds.

The database refuses nothing that Python accepts. What only code can judge (card numbers, assignments in prose, Base64)
is left to the check before the job runs.
"""

import re

import msgspec

from dutiful.core.redaction import assignments, secret_shapes, sensitive_names
from dutiful.core.rules import violations

# Shapes whose matches Python judges by code; here by a pattern that matches no more, or not at all.
_JUDGED = {
    "a JWT": r"eyJ[\w-]{9,}\.[\w-]{2,}\.[\w-]{14,}",
    "a bearer token": r"(?i)\mbearer[ \t]{1,4}(?=[\w.~+/-]{8})[\w.~+/-]*[0-9]",
    "a Vault token": (
        r"(?<![\w.-])(?:hv[sbr]\.[\w-]{24,}|s\.(?=[A-Za-z0-9]*[0-9])(?=[A-Za-z0-9]*[a-z])(?=[A-Za-z0-9]*[A-Z])"
        r"[A-Za-z0-9]{24}(?![\w.-]))"
    ),
    "a signed URL": (
        r"(?i)(?<![\w-])(?:(?:signature|sig)=(?=[\w%+/=~.-]*[0-9])[\w%+/=~.-]{20,}"
        r"|x-(?:amz-signature|goog-signature|amz-security-token)=(?=[\w%+/=~.-]*[0-9])[\w%+/=~.-]{6,})"
    ),
    "a URL with a password": (
        r"(?i)://[^\s/@:\"'<>]*:(?!(?:[x.]*|none|null|nil|true|false|yes|no|undefined|str|int|bytes|bool|any|string)@)"
        r"[^\s/@\"'<>{}()\[\]$%*?]+@"
    ),
    "a URL with a token": r"://(?=[\w-]*[0-9])[\w-]{20,}@",
}
_LEFT_TO_PYTHON = {"a password", "sk-"}
_POSSESSIVE = re.compile(r"(?<!\\)([+*?}])\+")


def _fragments() -> dict[str, str]:
    """By the names that schema/functions/jobs_secrets.sql gives them."""
    shapes = secret_shapes.SHAPES
    placeholder = rf"{assignments.PLACEHOLDER.pattern}|\$\w+|%\w+%"
    patterns = [(shape.name, pattern) for shape in shapes if (pattern := _pattern(shape)) is not None]
    return {
        "secret_meanings": _object(sensitive_names.MEANINGS),
        "secret_whole_names": _object(sensitive_names.WHOLE),
        "secret_cues": _text("|".join(_shortest({*sensitive_names.MEANINGS, *sensitive_names.WHOLE}))),
        "secret_inner": _text(f"(?:{'|'.join(sensitive_names.INNER)})s?$"),
        "secret_harmless": _array(sensitive_names.HARMLESS),
        "secret_forms": _text(f"^(?:{sensitive_names.FORMS.pattern})$"),
        "secret_about": _text(f"^(?:{sensitive_names.ABOUT.pattern})$"),
        "secret_flag": _text(f"(?i)^(?:{violations.FLAG.pattern}|{placeholder})$"),
        "secret_option": _text(f"^(?:{violations.OPTION.pattern})$"),
        "secret_placeholder": _text(f"(?i)^(?:{placeholder})$"),
        "secret_titles": _array(violations.TITLES),
        "secret_contents": _array(violations.CONTENTS),
        "secret_credentials": _array(sensitive_names.CREDENTIALS),
        "secret_marks": _text("|".join(sorted({re.escape(mark) for shape in shapes for mark in shape.marks}))),
        "secret_shapes": "case " + " ".join(f"when v_text ~ {_text(p)} then {_text(n)}" for n, p in patterns) + " end",
    }


def _pattern(shape: secret_shapes.SecretShape) -> str | None:
    if shape.name in _JUDGED:
        return _JUDGED[shape.name]
    if not _LEFT_TO_PYTHON.isdisjoint((shape.name, *shape.marks)):
        return None
    pattern = re.sub(r"\(\?P<\w+>", "(?:", shape.pattern.pattern)
    return _POSSESSIVE.sub(r"\1", pattern).replace(r"\b", r"\y")


def _shortest(words: set[str]) -> list[str]:
    """Those of which every other one contains at least one."""
    return sorted(word for word in words if not any(other != word and other in word for other in words))


def _object(meanings: dict[str, str]) -> str:
    return f"{_text(msgspec.json.encode(meanings).decode())}::jsonb"


def _array(texts: frozenset[str]) -> str:
    return f"array[{', '.join(map(_text, sorted(texts)))}]"


def _text(text: str) -> str:
    """A literal, in ASCII for databases of any encoding."""
    return "'" + text.replace("•", "").replace("'", "''") + "'"


SECRETS = _fragments()
