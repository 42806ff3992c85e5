"""SQLite on the standard library's driver, which applications share with their own connections."""

import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dutiful.store import Store
from dutiful.stores.sqlite import SqliteStore
from old_events import any_date
from suite import add_tests
from suite.audit import AuditSuite
from suite.leadership import LeadershipSuite
from suite.locks import LockSessionSuite
from suite.workers import WorkerSuite


@pytest.fixture
def closed_store(sqlite_path: Path) -> SqliteStore:
    return SqliteStore(sqlite_path, driver="sqlite3")


class TestAudit(AuditSuite):
    def any_date(self, store: Store) -> AbstractContextManager[None]:
        return any_date(store.url, connect=sqlite3.connect)


class TestLeadership(LeadershipSuite):
    one_leader = False


class TestWorker(WorkerSuite):
    sees_processes = True


add_tests(globals(), without=[LockSessionSuite])  # locks are rows here
