"""SQLite files that are not Dutiful's, or not yet: to look at them must leave them as they are."""

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from command_line import Project

LOOKS = [["doctor"], ["stats"], ["jobs", "list"], ["pause", "queue", "default"], ["alerts"], ["audit", "verify"]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (folder := tmp_path / "theirs").mkdir()
    return folder / "app 100%?.db"  # a name that an address has to quote


@pytest.fixture
def project(tmp_path: Path, file: Path) -> Project:
    return Project(tmp_path, f"sqlite:///{quote(str(file))}").write_jobs()


def make(file: Path, mode: str) -> None:
    with closing(sqlite3.connect(file)) as theirs:
        theirs.execute(f"pragma journal_mode = {mode}")
        theirs.execute("create table customers (name text)")
        theirs.execute("insert into customers values ('Ada')")
        theirs.commit()


def state(file: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in file.parent.iterdir()}


@pytest.mark.parametrize("driver", ["apsw", "sqlite3"])
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_to_look_at_the_file_of_another_program_leaves_it_as_it_is(
    project: Project, file: Path, mode: str, driver: str
) -> None:
    make(file, mode)
    before = state(file)

    answers = [(verb, project.run(*verb, DUTIFUL_SQLITE_DRIVER=driver)) for verb in LOOKS]

    for verb, answer in answers:
        reported = answer.out if verb == ["doctor"] else answer.err
        assert answer.code == (1 if verb == ["doctor"] else 69), (verb, answer)
        assert f"{file} is not a Dutiful database" in reported and "`dutiful migrate` makes it one" in reported, verb
    assert state(file) == before


def test_the_file_of_a_program_that_has_it_open_is_refused_too(project: Project, file: Path) -> None:
    make(file, "wal")
    with closing(sqlite3.connect(file)) as theirs:
        theirs.execute("insert into customers values ('Grace')")  # and not committed
        before = file.read_bytes()

        assert "is not a Dutiful database" in project.run("stats").err

        assert file.read_bytes() == before
        theirs.commit()


def test_an_empty_file_is_refused_likewise(project: Project, file: Path) -> None:
    file.touch()

    answer = project.run("jobs", "list")

    assert (answer.code, answer.err.count("\n")) == (69, 1)
    assert "is not a Dutiful database" in answer.err
    assert state(file) == {file.name: b""}


@pytest.mark.parametrize("verb", [["migrate"], ["enqueue", "greet", "name=Ada"]])
def test_what_makes_a_file_also_makes_tables_beside_those_of_another_program(
    project: Project, file: Path, verb: list[str]
) -> None:
    make(file, "delete")

    assert project.run(*verb).code == 0

    assert project.run("stats").code == 0
    with closing(sqlite3.connect(file)) as theirs:
        assert theirs.execute("select name from customers").fetchall() == [("Ada",)]


def test_a_file_that_a_worker_has_just_written_to_is_known(project: Project, file: Path) -> None:
    assert project.run("migrate").code == 0
    with closing(sqlite3.connect(file)) as open_elsewhere:  # so its WAL stays
        open_elsewhere.execute("insert into dutiful_meta values ('note', 'x')")
        open_elsewhere.commit()
        assert Path(f"{file}-wal").stat().st_size

        assert project.run("stats").code == 0


def test_the_doctor_says_how_to_create_a_missing_file(project: Project, file: Path) -> None:
    answer = project.run("doctor")

    assert answer.code == 1
    assert f"there is no database {file} yet" in answer.out and "dutiful migrate" in answer.out
    assert "server" not in answer.out
    assert not file.exists()
