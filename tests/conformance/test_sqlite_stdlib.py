"""SQLite on the standard library's driver, which applications share with their own connections."""

from pathlib import Path

import pytest
from suite import add_tests
from suite.leadership import LeadershipSuite
from suite.locks import LockSessionSuite
from suite.workers import WorkerSuite

from dutiful.stores.sqlite import SqliteStore


@pytest.fixture
def closed_store(sqlite_path: Path) -> SqliteStore:
    return SqliteStore(sqlite_path, driver="sqlite3")


class TestLeadership(LeadershipSuite):
    one_leader = False


class TestWorker(WorkerSuite):
    sees_processes = True


add_tests(globals(), without=[LockSessionSuite])  # locks are rows here
