"""With tenants on: the store as a worker, and as an application that acts for everybody. Both are ordinary roles."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
import pytest_asyncio
from psycopg import sql

from databases import CleanDatabase, Postgres
from dutiful.core.errors import DataRefused, UsageError
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from dutiful.testing.store_suite import (
    AccessSuite,
    ActSuite,
    AuditSuite,
    ClaimSuite,
    InsertSuite,
    LeaseSuite,
    MeasuringSuite,
    ReaderSuite,
    ReviewSuite,
    SettleSuite,
    TransactionSuite,
    UniqueSuite,
)
from tenanted import LoginRoles, dropped_after, new_schema

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.req("W67")]

DATABASE = "dutiful_tenants_conformance"
ROLES = ("worker", "application")


class Guarded:
    def __init__(self, clean: CleanDatabase, schema: str) -> None:
        self.clean = clean
        self.roles = LoginRoles(clean.url, schema)
        asyncio.run(self._guard())
        for role in ROLES:
            self.roles.create(role, group=role)
            self.roles.run("GRANT CREATE ON SCHEMA public TO {}", self.roles.name(role))  # for a handler's own tables

    async def _guard(self) -> None:
        owner = PostgresStore(self.clean.url, schema=self.roles.schema)
        await owner.open()
        await owner.enable_tenants()
        await owner.close()


@pytest.fixture(scope="module")
def guarded(postgres18: Postgres) -> Iterator[Guarded]:
    schema = new_schema()
    with dropped_after(postgres18, DATABASE, schema, ROLES):
        found = Guarded(CleanDatabase(postgres18, DATABASE, schema), schema)
        yield found
        found.clean.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(guarded: Guarded, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    store = PostgresStore(guarded.roles.url(request.param), schema=guarded.roles.schema)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def store(opened: Store, guarded: Guarded) -> Store:
    guarded.clean.reset(alone=False)
    return opened


def acting_as(*roles: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("opened", roles, indirect=True, scope="module")


@acting_as(*ROLES)
class TestInsert(InsertSuite): ...


@acting_as("worker")
class TestClaim(ClaimSuite): ...


@acting_as("worker")
class TestSettle(SettleSuite): ...


@acting_as(*ROLES)
class TestReader(ReaderSuite):
    async def test_migrating_again_changes_nothing(self, store: Store) -> None:
        """It is for the owner."""
        with pytest.raises(DataRefused, match="does not let this role"):
            await store.migrate()


@acting_as(*ROLES)
class TestReview(ReviewSuite): ...


@acting_as("worker")
class TestAudit(AuditSuite):
    @pytest.fixture(autouse=True)
    def ask_the_owner(self, guarded: Guarded) -> None:
        self._roles = guarded.roles

    async def keep(self, store: Store, span: timedelta | None) -> None:
        with pytest.raises(UsageError, match="as the owner of the schema"):
            await store.keep_audit(span)
        self._roles.run("UPDATE {}.audit_policy SET keep = {}", self._roles.schema, sql.Literal(span))


@acting_as("application")
class TestUnique(UniqueSuite): ...


@acting_as("application")
class TestLease(LeaseSuite): ...


@acting_as("application")
class TestTransaction(TransactionSuite): ...


@acting_as("application")
class TestAct(ActSuite): ...


@acting_as("application")
class TestAccess(AccessSuite): ...


@acting_as("worker")
class TestMeasuring(MeasuringSuite): ...
