"""What the command line prints of texts that came from outside."""

import json
import unicodedata

import pytest

from dutiful.cli.output.printing import flat, json_line, plain, print_json, say

# DEL, C1, soft hyphen, joiners, marks of direction, zero width, separators of lines, BOM, fillers, tags, lone surrogate
HOSTILE = [
    "\x1b", "\x7f", "\x80", "\x9b", "\u00ad", "\u034f", "\u061c", "\u115f", "\u200b", "\u200d", "\u200e", "\u200f",
    "\u2028", "\u2029", "\u202a", "\u202d", "\u202e", "\u2060", "\u2066", "\u2067", "\u2069", "\u206f", "\u3164",
    "\ufeff", "\uffa0", "\ufff9", "\U000e0041", "\U000e0100", "\ue000",
]  # fmt: skip
SEEN = "Grüße, 東京 ✓ – “quoted” 🚀 ½ \\u202e"


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
def test_json_has_no_character_that_a_terminal_obeys_or_hides(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = {"reason": f"a{hostile}b", f"k{hostile}": [SEEN]}
    print_json(value)
    printed = capsys.readouterr().out
    for text in (printed, json_line(value)):
        assert hostile not in text and json.loads(text) == value
        assert SEEN.replace("\\", "\\\\").replace("”", "”") in text, "what can be seen is left as it is"
        assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for c in text)
    assert "\n" not in json_line(value)


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
def test_people_see_an_escape_in_its_place(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    if hostile != "\U000e0100":  # a selector of a variant, which emoji have
        assert plain(f"a{hostile}b") == f"a{hostile.encode('unicode_escape').decode()}b"
        assert hostile not in flat(hostile)
        say(f"paused: a{hostile}b")
        assert hostile not in capsys.readouterr().out


def test_what_can_be_seen_is_printed_as_it_is() -> None:
    assert plain(SEEN + "\n\t") == SEEN + "\n\t" and flat("a\nb\tc") == "a\\nb\\tc"
