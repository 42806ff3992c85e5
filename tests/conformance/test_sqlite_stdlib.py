"""SQLite on the standard library's driver, which applications share with their own connections.

In `make test` runs what may depend on the driver or its library: values, transactions, conflicts, races, and whether it
knows each statement. The suites whose answers follow from those alone run in `make soak`.
"""

import re
import sqlite3
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

import pytest

from dutiful.store import Store
from dutiful.stores.sqlite import SqliteStore
from dutiful.stores.sqlite.engine.driver import connect
from dutiful.stores.sqlite.engine.sql import SQL
from old_events import any_date
from suite import add_tests
from suite.audit import AuditSuite
from suite.claims import ClaimSuite
from suite.claims_fencing import ClaimFencingSuite
from suite.claims_leases import ClaimLeaseSuite
from suite.claims_races import ClaimRaceSuite
from suite.claims_settle import ClaimSettleSuite, ClaimTransactionSuite
from suite.dead_letters import DeadLetterSuite
from suite.events import EventSuite
from suite.jobs import JobSuite
from suite.jobs_unique import JobUniqueSuite
from suite.leadership import LeadershipSuite
from suite.limits_rates import LimitRaceSuite
from suite.locks import LockSessionSuite, LockSuite
from suite.metrics import MetricSuite
from suite.queries_listing import QueryListingSuite
from suite.shares import ShareSuite
from suite.tokens import TokenSuite
from suite.workers import WorkerSuite

STATEMENT = re.compile(r"(--.*\n)*(SELECT|INSERT|UPDATE|DELETE|REPLACE)\b")  # the others are parts of these


@pytest.fixture
def closed_store(migrated_path: Path) -> SqliteStore:
    return SqliteStore(migrated_path, driver="sqlite3")


def test_the_library_knows_every_statement(migrated_path: Path) -> None:
    with closing(connect(str(migrated_path), "sqlite3", 1_000)) as db:
        assert isinstance(db.raw, sqlite3.Connection)
        whole = [text for text in SQL.values() if "{" not in text and STATEMENT.match(text)]
        for text in whole:
            with suppress(sqlite3.ProgrammingError):  # it is prepared, and lacks its values
                db.raw.execute(f"EXPLAIN {text}")
    assert len(whole) > 300


class TestAudit(AuditSuite):
    def any_date(self, store: Store) -> AbstractContextManager[None]:
        return any_date(store.url, connect=sqlite3.connect)


class TestLeadership(LeadershipSuite):
    one_leader = False


class TestWorker(WorkerSuite):
    sees_processes = True


add_tests(
    globals(),
    [
        ClaimSuite,
        ClaimFencingSuite,
        ClaimLeaseSuite,
        ClaimRaceSuite,
        ClaimSettleSuite,
        ClaimTransactionSuite,
        DeadLetterSuite,
        EventSuite,
        JobSuite,
        JobUniqueSuite,
        LimitRaceSuite,
        LockSuite,
        MetricSuite,
        QueryListingSuite,
        ShareSuite,
        TokenSuite,
    ],
)
add_tests(globals(), None, pytest.mark.soak, without=[LockSessionSuite])  # locks are rows here
