"""A process loads only the store that its database needs."""

import subprocess
import sys

_OPENED = """
import sys
from dutiful import Dutiful
app = Dutiful({url!r})
app.make_delivery(app.make_store())
print(*(name for name in ("apsw", "sqlite3", "asyncpg", "rich", "typer", "starlette") if name in sys.modules))
"""


def test_a_worker_on_postgres_loads_neither_sqlite_nor_the_command_line() -> None:
    assert _loaded("postgresql://nobody@127.0.0.1:1/jobs") == ["asyncpg"]


def test_a_worker_on_sqlite_does_not_load_the_driver_of_postgres() -> None:
    assert "asyncpg" not in _loaded("sqlite:///jobs.db")


def _loaded(url: str) -> list[str]:
    script = _OPENED.format(url=url)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
