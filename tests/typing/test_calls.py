"""What a type checker reports about calls of the API."""

import re
from pathlib import Path

from mypy import api

CALLS = Path(__file__).with_name("calls.py")


def test_wrong_calls_are_errors_and_right_ones_are_not() -> None:
    expected = {
        number: line.split("# E: ", 1)[1]
        for number, line in enumerate(CALLS.read_text().splitlines(), 1)
        if "# E: " in line
    }
    root = CALLS.parents[2]
    report, crash, _ = api.run([str(CALLS), "--config-file", str(root / "pyproject.toml"), "--no-error-summary"])
    found = {
        int(match[1]): match[2] for match in re.finditer(r"^.*calls\.py:(\d+): error: (.*)$", report, re.MULTILINE)
    }
    assert crash == "" and report.count(": error:") == len(found), report
    assert found.keys() == expected.keys(), report
    for number, message in expected.items():
        assert message in found[number]
