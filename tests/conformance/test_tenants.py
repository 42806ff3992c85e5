"""With tenants enabled: the store as a worker, and as an application for all tenants. Both are ordinary roles."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest
import pytest_asyncio
from psycopg import sql

from databases import CleanDatabase, Postgres
from dutiful.core.errors import DataRefused, UsageError
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from old_events import any_date
from suite import add_tests
from suite.audit import AuditSuite
from suite.claims import ClaimSuite
from suite.claims_leases import ClaimLeaseSuite
from suite.claims_settle import ClaimSettleSuite, ClaimTransactionSuite
from suite.control import ControlSuite
from suite.dead_letters_review import DeadLetterReviewSuite
from suite.jobs import JobSuite
from suite.jobs_unique import JobUniqueSuite
from suite.metrics import MetricSuite
from suite.queries import QuerySuite
from suite.tokens import TokenSuite
from tenanted import LoginRoles, dropped_after, new_schema

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.req("W67")]

DATABASE = "dutiful_tenants_conformance"
ROLES = ("worker", "operator")


class IsolatedDatabase:
    def __init__(self, clean: CleanDatabase, schema: str) -> None:
        self.clean = clean
        self.roles = LoginRoles(clean.url, schema)
        asyncio.run(self._isolate())
        for role in ROLES:
            self.roles.create(role, group=role)
            self.roles.run("GRANT CREATE ON SCHEMA public TO {}", self.roles.name(role))  # for a handler's own tables

    async def _isolate(self) -> None:
        owner = PostgresStore(self.clean.url, schema=self.roles.schema)
        await owner.open()
        await owner.tenants.enable()
        await owner.close()


@pytest.fixture(scope="module")
def isolated(postgres18: Postgres) -> Iterator[IsolatedDatabase]:
    schema = new_schema()
    with dropped_after(postgres18, DATABASE, schema, ROLES):
        found = IsolatedDatabase(CleanDatabase(postgres18, DATABASE, schema), schema)
        yield found
        found.clean.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(isolated: IsolatedDatabase, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    store = PostgresStore(isolated.roles.url(request.param), schema=isolated.roles.schema)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def store(opened: Store, isolated: IsolatedDatabase) -> Store:
    isolated.clean.reset(alone=False)
    return opened


def acting_as(*roles: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("opened", roles, indirect=True, scope="module")


@acting_as(*ROLES)
class TestQuery(QuerySuite):
    async def test_migrating_again_changes_nothing(self, store: Store) -> None:
        """Only the owner may migrate."""
        with pytest.raises(DataRefused, match="does not let this role"):
            await store.migrate()


@acting_as("worker")
class TestAudit(AuditSuite):
    @pytest.fixture(autouse=True)
    def remember_the_roles(self, isolated: IsolatedDatabase) -> None:
        self._roles = isolated.roles

    async def keep(self, store: Store, span: timedelta | None) -> None:
        with pytest.raises(UsageError, match="of the owner of the schema"):
            await store.audit.set_retention(span)
        self._roles.run("UPDATE {}.audit_policy SET keep = {}", self._roles.schema, sql.Literal(span))

    def any_date(self, store: Store) -> AbstractContextManager[None]:
        return any_date(self._roles.superuser_url, self._roles.schema)


add_tests(globals(), [JobSuite, DeadLetterReviewSuite], acting_as(*ROLES))
add_tests(globals(), [ClaimSuite, ClaimSettleSuite, MetricSuite], acting_as("worker"))
add_tests(
    globals(),
    [JobUniqueSuite, ClaimLeaseSuite, ClaimTransactionSuite, ControlSuite, TokenSuite],
    acting_as("operator"),
)
