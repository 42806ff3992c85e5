"""Answers that cannot be written: a full disk, a reader that has gone."""

import os
import subprocess
from pathlib import Path

import pytest
from command_line import Project

FULL = Path("/dev/full")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}").write_jobs()
    assert project.run("migrate").code == 0
    return project


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("unbuffered", "verb"),
    [
        ("", ["pause", "kind", "greet"]),
        ("", ["jobs", "list"]),
        ("1", ["jobs", "list"]),
        ("", ["stats", "--json"]),
        ("", ["enqueue", "greet", "name=Ada"]),
        ("1", ["enqueue", "greet", "name=Ada"]),
        ("", ["--help"]),
    ],
)
def test_a_full_disk_is_reported_in_one_line(project: Project, verb: list[str], unbuffered: str) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            project.command(*verb),
            cwd=project.folder,
            env=project.environment(PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )

    lines = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert (done.returncode, len(lines)) == (74, 1), done.stderr
    assert lines[0].startswith("dutiful: the output cannot be written (No space left on device)"), lines


def test_a_closed_pipe_is_not_reported_as_an_error(project: Project) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            project.command("jobs", "list", "--json"),
            cwd=project.folder,
            env=project.environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(writing)

    assert (done.returncode, done.stderr) == (1, "")
