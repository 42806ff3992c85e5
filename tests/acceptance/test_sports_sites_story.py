"""The register of sports sites runs its story."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from dutiful import UsageError
from examples.sports_sites.fake_services import FakeServices

ROOT = Path(__file__).parents[2]


def _run_story(*options: str, **own: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DUTIFUL_") and k != "DATABASE_URL"} | own
    command = [sys.executable, "-m", "examples.sports_sites", *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)


@pytest.mark.req(
    "L1", "L2", "L3", "L5", "L6", "L7", "L8", "L36", "L40", "L48", "L51", "L56", "L58", "L69", "L70", "L71", "L72"
)
@pytest.mark.req("L80", "L85", "L87", "L89", "L93", "L97", "L98", "L102")
def test_the_story_ends_by_itself_and_adds_up(app_url: str) -> None:
    postgres = app_url.startswith("postgres")
    before = _tables(app_url) if postgres else []
    done = _run_story("--database-url", app_url) if postgres else _run_story()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.count("✓") == 11 and "✗" not in done.stdout
    assert not postgres or _tables(app_url) == before, "it removes what it made, so that it can be repeated"


def _tables(database_url: str) -> list[tuple[str, ...]]:
    with psycopg.connect(database_url) as connection:
        found = connection.execute("select schemaname, relname from pg_stat_user_tables order by 1, 2")
        return [tuple(row) for row in found]


@pytest.mark.parametrize("options", [(), ("--views",)])
def test_an_address_where_nothing_answers_is_reported_in_a_line(options: tuple[str, ...], tmp_path: Path) -> None:
    done = _run_story(*options, "--database-url", "postgresql://127.0.0.1:1/nowhere", SPORTS_FOLDER=str(tmp_path))
    assert done.returncode == 2 and "Connect" in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 2, "below the usage"


async def test_a_port_of_the_world_outside_that_is_taken_is_reported_with_a_remedy() -> None:
    async with FakeServices().open() as taken:
        with pytest.raises(UsageError, match=r"cannot listen on .*choose another port"):
            async with FakeServices().open(smtp_port=taken.smtp_port):
                pass
