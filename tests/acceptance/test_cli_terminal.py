"""Lists on a real terminal: a line a row, however narrow it is."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from command_line import Project
from dead_letters import CommandLine

from dutiful.core import ids

KIND = "send_invoice_to_customer"
WHY = "the mail server at mx.example.org refused it for its policy: " + "see https://example.org/policy/7 " * 3
ERROR = {"type": "SMTPError", "message": f"{WHY}THE END", "class": "retryable", "fingerprint": "f1"}
LIST = [("dead-letters", "list"), ("jobs", "list", "--state", "failed")]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db").write_jobs(), monkeypatch, capsys)


def on_terminal(project: Project, columns: int, *args: str) -> tuple[list[str], str]:
    """The lines of a terminal this wide, and what stands below them on stderr."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = project.environment(TERM="xterm")
    environment.pop("COLUMNS", None)
    with subprocess.Popen(
        project.command(*args),
        cwd=project.folder, env=environment, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        os.close(theirs)
        out = _read(ours)
        assert running.stderr is not None
        err = running.stderr.read()
    assert running.returncode == 0, err
    return re.sub(r"\r|\x1b\[[\d;]*m", "", out).splitlines(), err


def _read(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 65_536):
            parts.append(part)
    except OSError:  # Linux says so when the other side has closed
        pass
    os.close(terminal)
    return b"".join(parts).decode()


@pytest.mark.parametrize("columns", [240, 120, 80, 60, 40])
@pytest.mark.parametrize("verb", LIST, ids=" ".join)
def test_ten_rows_take_ten_lines(cli: CommandLine, verb: tuple[str, ...], columns: int) -> None:
    dead = cli.make_dead_letters(10, kind=KIND, error=ERROR)

    lines, below = on_terminal(cli.project, columns, *verb)

    assert len(lines) == 12, "a heading, a rule and ten rows"
    assert max(len(line) for line in lines) <= columns
    assert {line.split()[0] for line in lines[2:]} == {ids.public(one) for one in dead}, "ids are never cut"
    if columns >= 60:
        assert all(line.split()[1] == KIND for line in lines[2:]), "nor are kinds"
    if columns in (80, 120):
        assert all("SMTPError" in line and line.rstrip().endswith("…") for line in lines[2:]), "errors are"
    if columns == 240:
        assert (lines[0].split()[-2:], below) == (["class", "error"], ""), "nothing is left out"
    else:
        assert "class" not in lines[0].split()
        assert below.startswith("left out: ") and " class" in below and "--json" in below, "left-out columns are named"


def test_a_page_about_one_job_has_its_error_whole(cli: CommandLine) -> None:
    (job,) = cli.make_dead_letters(1, kind=KIND, error=ERROR)

    page, _ = on_terminal(cli.project, 80, "jobs", "show", str(job))
    letter, _ = on_terminal(cli.project, 80, "dead-letters", "show", str(job))

    assert "END" in "".join(page) and "…" not in "".join(page)
    assert "THE END" in " ".join(letter)


@pytest.mark.parametrize("verb", LIST, ids=" ".join)
def test_a_pipe_gets_all_columns_and_the_whole_error(cli: CommandLine, verb: tuple[str, ...]) -> None:
    cli.make_dead_letters(2, kind=KIND, error=ERROR)

    answer = cli.run(*verb)

    assert len(answer.out.splitlines()) == 3 and answer.out.count("THE END") == 2
    assert "tries" in answer.out and "class" in answer.out and answer.err == ""
