"""The story of the documentation host, played by its own command; and its pages, served."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from databases import Postgres

ROOT = Path(__file__).parents[2]


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DUTIFUL_") and k != "DATABASE_URL"}
    command = [sys.executable, "-m", "examples.docverse", *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.req("D2", "D7", "D13", "D30", "D49", "D63", "D87", "D93", "D122")
@pytest.mark.parametrize("delivery", ["store", "arq"])
def test_the_story_ends_with_every_check_passed_and_removes_what_it_made(
    postgres18: Postgres, request: pytest.FixtureRequest, delivery: str
) -> None:
    before = _databases(postgres18)
    redis = [] if delivery == "store" else ["--redis-url", request.getfixturevalue("empty_redis")]
    done = _run("--database-url", postgres18.dsn(), "--delivery", delivery, *redis)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    marks = re.findall(r"^  ([✓✗]) ", done.stdout, re.MULTILINE)
    assert len(marks) == 17 and set(marks) == {"✓"}
    counted = set(re.findall(r"^ +\d+ (\w+) completed", done.stdout, re.MULTILINE))
    assert counted == {
        "build_processing", "edition_update", "dashboard_sync", "lifecycle_eval", "git_ref_audit", "purgatory_cleanup",
        "credential_reencrypt",
    }  # fmt: skip
    assert _databases(postgres18) == before


def test_an_address_where_nothing_answers_is_reported_in_a_line() -> None:
    done = _run("--database-url", "postgresql://127.0.0.1:1/nowhere")
    assert done.returncode == 2 and "cannot connect to the database" in done.stderr
    assert "Traceback" not in done.stderr


def _databases(server: Postgres) -> list[str]:
    with psycopg.connect(server.dsn()) as connection:
        return [name for (name,) in connection.execute("select datname from pg_database order by datname")]
