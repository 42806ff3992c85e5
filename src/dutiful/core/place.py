"""Where something stands in a payload, told so that no secret in it is repeated, be it a name."""

import functools
import re
from typing import Any, TypeAlias

from dutiful.core.sensitive import REDACTED, secret_in

# The place of what it is in (or None), and its name or index there. It is spelt for an error only: places are many, and
# each may lie deep.
Place: TypeAlias = tuple[Any, str | int]

_LONGEST = 80
_LOOKED_AT = 500
_ENDS = 10  # steps that are told of a long path, at either end
_GIVEN = re.compile(r"\b([Vv]alue) (?:'.*'|\".*\"|-?[\d.]+)", re.DOTALL)
_UNKNOWN = re.compile(r"(unknown field) `(.*)`", re.DOTALL)


def spell(place: Place | None, root: str = "") -> str:
    """As in `account.owner`, `items[3]`."""
    steps: list[str | int] = []
    while place is not None:
        place, step = place
        steps.append(step)
    steps.reverse()
    if len(steps) > 3 * _ENDS:
        steps = [*steps[:_ENDS], "…", *steps[-_ENDS:]]
    path = root + "".join(f"[{step}]" if isinstance(step, int) else f".{safe_name(step)}" for step in steps)
    return path.removeprefix(".")


def safe_name(name: str) -> str:
    """A field's name as it may be told: no secret, and not at any length."""
    if _has_secret(name[:_LOOKED_AT]):
        return REDACTED
    shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
    return shown.replace("\0", "").encode("utf-8", "replace").decode()


def safe_reason(message: str) -> str:
    """What msgspec says is wrong with a payload, without the value, and without a name that is not to be told."""
    message = _UNKNOWN.sub(lambda match: f"{match[1]} `{safe_name(match[2])}`", message)
    return _GIVEN.sub(r"\1", message)


@functools.lru_cache(maxsize=4096)  # names are few, and come again and again
def _has_secret(name: str) -> bool:
    return secret_in(name) is not None
