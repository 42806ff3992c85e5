"""Secrets on the command line: in addresses, arguments and stored texts."""

import json
import threading
from pathlib import Path

import pytest
from command_line import Answer, Project

TOKEN = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}").write_jobs()


@pytest.mark.req("W8")
@pytest.mark.parametrize(
    "verb", [["doctor"], ["jobs", "list"], ["migrate"], ["worker"], ["stats", "--json"]], ids=" ".join
)
@pytest.mark.parametrize(
    "url", ["postgres//ada:hunter2zz@db/shop", "postgresql://ada:1#hunter2zz@db/shop", ":hunter2zz@db"]
)
def test_no_command_shows_or_keeps_the_password_of_a_malformed_address(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: list[str], url: str
) -> None:
    before = {path.name for path in project.folder.iterdir()}
    answer = project.call(monkeypatch, capsys, "--database-url", url, *verb)
    assert answer.code == 2, answer
    assert "hunter2zz" not in answer.out + answer.err and "database_url" in answer.err
    assert {path.name for path in project.folder.iterdir()} <= before | {"__pycache__"}
    assert not [thread for thread in threading.enumerate() if "stacks" in thread.name], "a worker leaves no thread"


@pytest.mark.req("W8")
@pytest.mark.parametrize(
    "args",
    [["worker", "postgresql://ada:hunter2zz@db/shop"], ["postgresql://ada:hunter2zz@db/shop"],
     ["--app", "postgresql://ada:hunter2zz@db/shop", "worker"], ["jobs", "show", "postgresql://ada:hunter2zz@db/shop"]],
    ids=" ".join,
)  # fmt: skip
def test_an_address_in_the_wrong_place_is_refused_without_its_password(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str]
) -> None:
    answer = project.call(monkeypatch, capsys, *args)
    assert answer.code == 2 and "hunter2zz" not in answer.out + answer.err


@pytest.mark.parametrize("hidden", ["\x9b31m", "\u202e", "\u200b", "\u2028"], ids=ascii)
def test_what_is_printed_of_a_reason_cannot_be_obeyed_by_a_terminal(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hidden: str
) -> None:
    def call(*args: str) -> str:
        answer = project.call(monkeypatch, capsys, *args)
        assert answer.code == 0, answer.err
        return answer.out + answer.err

    job = call("enqueue", "greet", f"name=a{hidden}b").strip()
    call("pause", "queue", "default", "--reason", f"a{hidden}b")
    text = f"a{hidden}b"
    call("dead-letters", "discard", "--all", "--text", text, "--yes", "--notes", text, "--json")
    run = json.loads(call("bulk", "list", "--json"))["runs"][0]["id"]
    for verb in (
        ["jobs", "show", job], ["jobs", "show", job, "--json"], ["jobs", "list", "--json", "--details"],
        ["queues", "--json"], ["queues"], ["audit", "list"], ["audit", "list", "--json"],
        ["bulk", "show", run], ["bulk", "show", run, "--json"], ["bulk", "list"],
    ):  # fmt: skip
        assert hidden[0] not in call(*verb), verb


@pytest.mark.req("W8")
def test_a_token_in_the_filter_of_a_bulk_run_is_not_shown(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*args: str) -> Answer:
        return project.call(monkeypatch, capsys, *args)

    filters = ("--text", TOKEN, "--correlation-id", TOKEN, "--queue", TOKEN)
    assert call("migrate").code == 0
    started = call("dead-letters", "discard", "--all", *filters, "--notes", TOKEN, "--yes", "--json")
    run = started.json["id"]
    for verb in (["bulk", "show", run], ["bulk", "show", run, "--json"], ["bulk", "list", "--json"], ["audit", "list"]):
        answer = call(*verb)
        assert answer.code == 0 and TOKEN not in answer.out + answer.err + started.out, verb
