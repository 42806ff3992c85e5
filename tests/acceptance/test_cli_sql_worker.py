"""`sql-worker`: what it refuses to start with, in one line that says what to do."""

import sys
from pathlib import Path

import pytest
from command_line import Project

COMMS = """
from dutiful.channels import Channels

mail = Channels()
other = 1
"""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["comms:other"],
            "channels 'comms:other': other in module comms is not an object of the class Channels; it has comms:mail",
        ),
        (["comms"], "channels in module comms is not an object of the class Channels"),
        (["nowhere:channels"], "there is no module 'nowhere'"),
        (["comms.py:mail"], "name the module, not its file"),
        (["broken:channels"], "channels 'broken:channels' cannot be imported: ValueError: oops (broken.py, line 1)"),
        (["comms:mail", "--lease", "0s"], "must be from 1s to 1d"),
        (["comms:mail", "--lease", "2d"], "must be from 1s to 1d"),
        (["comms:mail", "--queue", ""], "--queue '' must be a text of 1 to 200 characters"),
        (["comms:mail"], "a SQL worker needs Postgres"),
    ],
)
def test_a_start_that_cannot_work_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    (tmp_path / "comms.py").write_text(COMMS)
    (tmp_path / "broken.py").write_text("raise ValueError('oops')")
    for name in ("comms", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    answer = Project(tmp_path, "sqlite:///x.db").call(monkeypatch, capsys, "sql-worker", *args)
    assert answer.code == 2 and message in " ".join(answer.err.split())
    assert not (tmp_path / "x.db").exists()
