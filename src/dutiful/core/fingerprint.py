"""A short name that errors have in common when they are alike, so that a thousand of them are one line in a list.

It is made of the error's type, its message without all that differs from job to job, and the function where it came
from: the same words from two places are two troubles. Line numbers, paths and addresses in memory are left out, so a
release, another machine or another Python changes nothing. It does not know the kind: lists group by that besides.
"""

import re
from hashlib import blake2b
from pathlib import PurePath
from types import TracebackType

LOOKED_AT = 2_000  # characters of a message
LONGEST_WORD = 40

_QUOTED = re.compile(r"""(?<!\w)(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`|“[^”\n]*”|«[^»\n]*»)""")
_WORD = re.compile(r"[^\s()\[\]{}<>=;,]+")
_HEX = re.compile(r"[0-9a-fA-F]{8,}")
_SEVERAL = re.compile(r"#(?:[\s,]+#)+")


def fingerprint(type: str, message: str, place: str = "") -> str:
    parts = "\n".join((type, gist(message), place))
    return blake2b(parts.encode("utf-8", "replace"), digest_size=8).hexdigest()


def gist(message: str) -> str:
    """The words that are the same each time: no numbers, ids, addresses, paths or quotations."""
    text = _QUOTED.sub("#", message[:LOOKED_AT])
    text = " ".join("#" if "://" in word else word for word in text.split())
    text = _WORD.sub(lambda word: "#" if _differs(word[0]) else word[0], text)
    return _SEVERAL.sub("#", text)


def place(traceback: TracebackType | None) -> str:
    """The innermost function of the package whose code Dutiful called first: where the user's own code was."""
    package, found = None, ""
    while traceback is not None:
        frame = traceback.tb_frame
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package is None and root != "dutiful":
            package = root
        code = frame.f_code
        # Comprehensions have a frame in some versions of Python and none in others.
        if root == package and not code.co_name.startswith("<"):
            found = f"{PurePath(code.co_filename).name}:{code.co_name}"
        traceback = traceback.tb_next
    return found


def _differs(word: str) -> bool:
    return (
        len(word) > LONGEST_WORD
        or any(character.isdigit() or character in "@/\\" for character in word)
        or _HEX.fullmatch(word) is not None
    )
