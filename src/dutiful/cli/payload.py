"""A payload as the command line gets it: JSON, a file of it, or stdin."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from dutiful.core.errors import UsageError


def read_payload(whole: str) -> dict[str, Any]:
    """What --payload says: JSON itself, @FILE, or - for stdin."""
    where, text = _read(whole)
    try:
        payload = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(
            f'the payload ({where}) is not JSON: {error}; it has to be an object like {{"n": 1}}'
        ) from error
    if not isinstance(payload, dict):
        raise UsageError(f'the payload ({where}) is not an object; write it like {{"n": 1}}')
    return payload


def _read(whole: str) -> tuple[str, bytes]:
    if whole == "-":
        return "from stdin", sys.stdin.buffer.read()
    if not whole.startswith("@"):
        return "from --payload", whole.encode("utf-8", "surrogateescape")
    try:
        return f"from {whole[1:]}", Path(whole[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"--payload {whole}: the file cannot be read: {error.strerror}") from error
