"""The first minutes: help, init, migrate, which app, which database."""

import re
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import apsw
import psycopg
import pytest
from command_line import Project

from databases import Postgres


@pytest.fixture
def project(tmp_path: Path, sqlite_path: Path) -> Project:
    return Project(tmp_path, f"sqlite:///{sqlite_path}").write_jobs()


@pytest.fixture
def bare_url(postgres18: Postgres) -> Iterator[str]:
    """A database that is not migrated."""
    name = f"cli_{uuid4().hex}"
    yield postgres18.create_database(name)
    postgres18.drop_database(name)


def test_the_version_and_all_verbs_are_shown(tmp_path: Path) -> None:
    project = Project(tmp_path, "sqlite:///dutiful.db", fresh=True)

    assert project.run("--version").out.startswith("dutiful 0.")
    reported = project.run("--help").out
    for verb in ("init", "migrate", "enqueue", "jobs", "queues", "workers", "pause", "resume", "schedules", "stats",
                 "doctor", "worker", "demo"):  # fmt: skip
        assert f" {verb} " in reported


def test_help_is_wrapped_to_the_terminal_and_names_values_as_the_reference_does(tmp_path: Path) -> None:
    project = Project(tmp_path, "sqlite:///dutiful.db", fresh=True)

    wide = project.run("drain", "--help", COLUMNS="200").out
    narrow = project.run("enqueue", "--help", COLUMNS="80").out

    # In the source a line ends after "was": that is no end of a line for those who read it in a terminal.
    assert "or it was resumed meanwhile; running jobs are listed" in wide
    assert re.search(r'^ +dutiful drain --kind send_email .* --reason "mail server moves" *$', wide, re.MULTILINE)
    options = [line for line in (wide + narrow).splitlines() if line.startswith("│ --") and "--help" not in line]
    assert not [line for line in options if re.search(r"<(bool|str|int|list)|list\[", line)]
    assert re.search(r"--queue +TEXT ", narrow)
    assert max(map(len, narrow.splitlines())) <= 80


def test_init_writes_a_starter_that_works_and_overwrites_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path, "sqlite:///dutiful.db", fresh=True)

    made = project.run("init")
    again = project.run("init")

    assert made.code == 0
    assert "dutiful worker" in made.out
    assert (again.code, again.err.count("\n")) == (1, 1)
    assert "--force" in again.err
    assert project.run("init", "--force").code == 0
    # The app is found through dutiful.toml.
    assert project.run("enqueue", "greet", "name=Ada", DUTIFUL_APP="").code == 0


def test_an_app_that_cannot_be_imported_is_refused_with_the_users_own_line(tmp_path: Path) -> None:
    project = Project(tmp_path, "sqlite:///dutiful.db", fresh=True)
    wrong = ["from dutiful import Dutiful", "app = Dutiful()", "@app.job", "def resize(*paths): ..."]
    (tmp_path / "jobs.py").write_text("\n".join(wrong))

    refused = project.run("worker", "jobs:app")

    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "parameter 'paths' is not a named field" in refused.err
    assert refused.err.endswith("(jobs.py, line 3)\n")


def test_migrate_makes_a_sqlite_file_and_can_be_repeated(project: Project, sqlite_path: Path) -> None:
    script = project.run("migrate", "--sql")
    assert "create table" in script.out.lower()
    assert not sqlite_path.exists()
    by_hand = sqlite_path.with_name("by_hand.db")
    with closing(apsw.Connection(str(by_hand))) as database:
        database.execute(script.out)
    url = f"sqlite:///{by_hand}"
    assert project.run("--database-url", url, "migrate").out.strip().endswith("is up to date")
    assert project.run("--database-url", url, "jobs", "list").code == 0

    first, second = project.run("migrate"), project.run("migrate")

    assert (first.code, second.code) == (0, 0)
    assert "creating" in first.out
    assert second.out == f"sqlite:///{sqlite_path} is up to date\n"


def test_migrate_gives_up_on_a_lock_and_says_who_holds_it(project: Project, bare_url: str) -> None:
    with psycopg.connect(bare_url, application_name="report") as holder:
        holder.execute("select pg_advisory_lock(hashtext('dutiful migrate dutiful'))")
        refused = project.run("migrate", "--wait", "1s", "--database-url", bare_url)
        assert refused.code == 69
        assert f"process {holder.info.backend_pid} (role " in refused.err and "application report" in refused.err
        assert f"pg_terminate_backend({holder.info.backend_pid})" in refused.err


def test_migrate_gives_up_on_a_locked_file(project: Project, sqlite_path: Path) -> None:
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as holder:
        holder.execute("pragma journal_mode = wal")
        holder.execute("begin immediate")
        refused = project.run("migrate", "--wait", "500ms")
        assert (refused.code, refused.out) == (69, "")
        assert "another process kept the database locked" in refused.err
    assert project.run("migrate", "--wait", "1s").code == 0
    assert project.run("migrate", "--wait", "soon").code == 2


def test_postgres_is_unavailable_until_it_is_migrated(project: Project, bare_url: str) -> None:
    database = ("--database-url", bare_url)
    before = project.run("queues", *database)
    assert (before.code, before.err.count("\n")) == (69, 1)
    assert "dutiful migrate" in before.err

    first, second = project.run("migrate", *database), project.run("migrate", *database)

    assert "applied 0001_tables" in first.out
    assert "applied" not in second.out
    assert "up to date" in second.out
    assert project.run("queues", *database).code == 0

    with psycopg.connect(bare_url, autocommit=True) as connection:
        connection.execute("update dutiful.meta set value = '99'")
    newer = project.run("queues", *database)
    assert newer.code == 69
    assert "upgrade" in newer.err
    sick = project.run("doctor", *database)
    assert sick.code == 1
    assert "upgrade" in sick.out


def test_a_newer_sqlite_file_is_refused(project: Project, sqlite_path: Path) -> None:
    project.run("migrate")
    connection = apsw.Connection(str(sqlite_path))
    connection.execute("update dutiful_meta set value = '99'")
    connection.close()

    answer = project.run("jobs", "list")

    assert answer.code == 69
    assert "upgrade" in answer.err


def test_looking_at_a_database_that_is_not_there_makes_none(project: Project, sqlite_path: Path) -> None:
    answer = project.run("jobs", "list")

    assert answer.code == 69
    assert str(sqlite_path) in answer.err
    assert not sqlite_path.exists()


@pytest.mark.parametrize(
    ("app", "reported"),
    [
        ("nowhere:app", "no module 'nowhere'"),
        ("jobs:not_an_app", "it has jobs:app"),
        ("jobs.py:app", "not its file"),
        ("broken:app", "ModuleNotFoundError: No module named 'missing_library' (broken.py, line 2)"),
        ("", "DUTIFUL_APP"),
    ],
)
def test_an_app_that_cannot_be_had_is_a_usage_error_with_its_cause(project: Project, app: str, reported: str) -> None:
    (project.folder / "broken.py").write_text("\nimport missing_library\n")

    answer = project.run("enqueue", "greet", "name=Ada", DUTIFUL_APP=app)

    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert reported in answer.err


def test_app_and_database_may_be_chosen_after_the_verb(project: Project) -> None:
    chosen = ("--database-url=sqlite:///other.db", "--app", "jobs:app")

    answer = project.run("enqueue", "greet", "name=Ada", *chosen, DUTIFUL_APP="", DUTIFUL_DATABASE_URL="")

    assert answer.code == 0, answer.err
    assert (project.folder / "other.db").exists()
    # A database alone is enough to read, even if the app that the environment names is broken.
    read = project.run("jobs", "list", "--database-url", "sqlite:///other.db", "--json", DUTIFUL_APP="nowhere:app")
    assert len(read.json["jobs"]) == 1


def test_a_profile_that_the_app_does_not_have_is_refused_by_whatever_reads_its_settings(project: Project) -> None:
    assert project.run("migrate").code == 0
    for verb in (["stats"], ["doctor"], ["pause", "queue", "default"], ["worker"]):
        refused = project.run(*verb, DUTIFUL_PROFILE="prod")
        assert refused.code == 2 and "there is no profile 'prod'" in refused.err, verb
    # Without an app its profiles are unknown, and none is needed.
    assert project.run("stats", DUTIFUL_PROFILE="prod", DUTIFUL_APP="").code == 0


@pytest.mark.parametrize(
    "args", [["jbos"], ["jobs", "list", "--nonsense"], ["jobs", "list", "--limit", "0"], ["enqueue"]]
)
def test_a_wrong_command_is_one_line_and_a_usage_error(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str]
) -> None:
    answer = project.call(monkeypatch, capsys, *args)

    assert (answer.code, answer.err.count("\n")) == (2, 1)


def test_a_reader_that_has_seen_enough_causes_no_noise(project: Project) -> None:
    project.run("migrate")
    process = subprocess.Popen(
        project.command("migrate", "--sql"), cwd=project.folder, env=project.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    assert process.wait(30) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_slots_of_lanes_that_are_replaced_are_refused(project: Project) -> None:
    answered = project.run("worker", "--lane", "mail=2:mail", "--general", "4")

    assert answered.code == 2
    assert "--lane replaces all lanes" in answered.err
