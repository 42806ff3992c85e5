"""A process loads only the store that its database needs."""

import subprocess
import sys

import pytest

import dutiful
from dutiful.operator import Operator
from dutiful.operator.drain import Drain

_OPENED = """
import sys
from dutiful import Dutiful
app = Dutiful({url!r})
app.make_delivery(app.make_store())
import {module}
print(*(name for name in {names!r} if name in sys.modules))
"""
_HEAVY = (
    "apsw", "sqlite3", "asyncpg", "rich", "typer", "starlette", "httpx2", "dutiful.operator", "multiprocessing",
    "importlib.resources", "tempfile", "email.utils",
)  # fmt: skip


def test_a_worker_on_postgres_loads_no_more_than_it_needs() -> None:
    assert _loaded("postgresql://nobody@127.0.0.1:1/jobs") == ["asyncpg"]


def test_a_worker_on_sqlite_does_not_load_the_driver_of_postgres() -> None:
    assert "asyncpg" not in _loaded("sqlite:///jobs.db")


def test_the_command_of_a_worker_does_not_load_what_only_operators_use() -> None:
    assert "dutiful.operator" not in _loaded("postgresql://nobody@127.0.0.1:1/jobs", "dutiful.cli.commands.worker")


def test_what_operators_use_is_found_where_it_was() -> None:
    assert dutiful.Operator is Operator and dutiful.Drain is Drain
    with pytest.raises(AttributeError, match="has no attribute 'Operators'"):
        getattr(dutiful, "Operators")  # noqa: B009 (a type checker knows that it is not there)


def _loaded(url: str, module: str = "dutiful.worker.worker") -> list[str]:
    script = _OPENED.format(url=url, module=module, names=_HEAVY)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
