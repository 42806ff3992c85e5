"""`dutiful server` where it cannot listen."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}").write_jobs()


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_port_in_use_is_reported_before_anything_starts(project: Project, taken: int) -> None:
    answer = project.run("server", "--port", str(taken))

    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"dutiful: port {taken} on 127.0.0.1 is in use: stop the process that listens there, or give another --port\n"
    )
    assert not (project.folder / "jobs.db").exists()


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (["--host", "nowhere.invalid"], "--host nowhere.invalid: there is no such address"),
        (["--host", "x" * 70 + ".example"], "there is no such address"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1: this machine cannot listen there"),
        (["--port", "65536"], "'--port': it should be less than or equal to 65535"),
        (["--port", "-1"], "'--port': it should be greater than or equal to 0"),
    ],
)
def test_an_address_that_cannot_be_had_is_a_usage_error(project: Project, options: list[str], reported: str) -> None:
    answer = project.run("server", *options)

    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    assert reported in answer.err
