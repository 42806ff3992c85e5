"""Ordinary login roles of a database that keeps tenants apart."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import psycopg
from psycopg import sql

from databases import Postgres
from dutiful.core.breaker.state import BreakerPolicy
from dutiful.core.job import PhaseState, Unique
from dutiful.core.outcome import Failed, Snoozed
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.store.locks import LockName
from dutiful.store.schedules import ScheduleRecord
from dutiful.stores.postgres import PostgresStore
from suite.audit import event
from suite.builders import (
    OOPS,
    PIPELINE,
    T0,
    at,
    enqueue,
    finish_one,
    mark,
    new_job,
    progress,
    report_all,
    settle,
    start_one,
    token,
)
from suite.dead_letters_bulk import start
from suite.tokens import api_token
from suite.webhooks import webhook

PASSWORD = "not-a-secret"
GROUPS = ("operator", "worker", "member", "owner")
MORE_GROUPS = ("client", "sql_worker", "reader")  # made by `dutiful roles` only
# Tables of the whole fleet. A new table is listed here if it has no tenant's data.
FLEET = {
    "alert",
    "alert_check",
    "audit_anchor",
    "audit_policy",
    "audit_seal",
    "audit_unsealed",
    "breaker",
    "breaker_kind",
    "counter",
    "counter_hour",
    "counter_last",
    "counter_minute",
    "counter_total",
    "counter_turn",
    "event_turn",
    "kind_default",
    "leader",
    "limit_hold",
    "limit_kind",
    "limit_rule",
    "listener",
    "lock_secret",
    "meta",
    "migration",
    "pause",
    "payload_rule",
    "tenant_role",
    "webhook",
    "worker",
}
WHOSE = {
    "column": "nullif(t.tenant, '')",
    "json": "t.job ->> 'tenant'",
    "job": "(select j.tenant from {schema}.job j where j.id = t.job_id)",
}
LOGINS = {"owner": None, "operator": "operator", "worker": "worker", "acme": None, "both": None, "none": "member"}


def new_schema() -> str:
    """A unique name, because the groups are named after it."""
    return f"tenants_{uuid4().hex[:8]}"


class LoginRoles:
    """Roles that can only log in, named after the schema; `url` logs one of them in."""

    def __init__(self, superuser_url: str, schema: str) -> None:
        self.superuser_url = superuser_url
        self.schema = schema

    def name(self, role: str) -> str:
        return f"{self.schema}_{role}_user"

    def url(self, role: str) -> str:
        parts = urlsplit(self.superuser_url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{self.name(role)}:{PASSWORD}@{host}"))

    def create(self, role: str, *, group: str | None = None, rights: str = "") -> None:
        self.run(f"CREATE ROLE {{}} LOGIN {rights} PASSWORD {{}}", self.name(role), sql.Literal(PASSWORD))
        if group is not None:
            self.run("GRANT {} TO {}", f"{self.schema}_{group}", self.name(role))

    def run(self, statement: str, *names: str | sql.Composable) -> list[tuple[Any, ...]]:
        """As superuser; names are quoted."""
        parts = [name if isinstance(name, sql.Composable) else sql.Identifier(name) for name in names]
        with psycopg.connect(self.superuser_url, autocommit=True) as connection:
            cursor = connection.execute(sql.SQL(statement).format(*parts))
            return cursor.fetchall() if cursor.description else []


@contextmanager
def dropped_after(server: Postgres, database: str, schema: str, roles: Sequence[str]) -> Iterator[None]:
    try:
        yield
    finally:
        server.drop_database(database)
        # The groups first, because memberships depend on the roles that granted them.
        names = [f"{schema}_{group}" for group in (*GROUPS, *MORE_GROUPS)] + [f"{schema}_{role}_user" for role in roles]
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
            for name in names:
                connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


@asynccontextmanager
async def opened(url: str, schema: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, schema=schema)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def fill(store: Store, *tenants: str | None) -> dict[str | None, dict[str, UUID]]:
    """Add rows of each tenant to every table that can have them; returns their jobs by state."""
    for tenant in tenants:
        await finish_one(store, tenant=tenant)
    await store.retention.delete(timedelta(0), 10, None, sent=True, now=at(1), tombstones=True)
    await store.webhooks.put([webhook()])
    await store.breakers.open("maps", timedelta(seconds=1), now=T0)
    jobs = {tenant: await _make_jobs(store, tenant) for tenant in tenants}
    await store.retention.mark_stale(timedelta(0), 100, None, sent=True, now=at(1))
    for tenant in tenants:
        await store.audit.append([event(tenant=tenant)])
        await start(store, filter=DeadLetterFilter(tenant=tenant))
        schedule = ScheduleRecord(
            name=f"schedule of {tenant}",
            kind="greet",
            expression="0 * * * *",
            timezone="UTC",
            catch_up="once",
            job={"tenant": tenant, "payload": {}},
            next_at=at(3600),
        )
        await store.schedules.put([schedule])
    return jobs


async def _make_jobs(store: Store, tenant: str | None) -> dict[str, UUID]:
    whose: dict[str, Any] = {"tenant": tenant, "queue": f"of_{tenant}"}
    done = await finish_one(store, **whose)
    retried = await start_one(store, **whose)
    await settle(store, retried, Snoozed(timedelta(hours=1)))
    failed = await finish_one(store, Failed(OOPS, final=True), **whose)
    running = await start_one(store, **whose, options=PIPELINE)
    await report_all(store, mark(running, "download", PhaseState.COMPLETED), progress(running, percent=50.0))
    waiting = await start_one(store, **whose)
    for claimed in (running, waiting):
        await store.locks.try_acquire(token(claimed), LockName("edition", tenant or "none"), now=T0)
    await store.breakers.enter("maps", BreakerPolicy(probes=10), token(running), now=at(1))
    ready = new_job(**whose, unique=Unique("key"))
    blocked = new_job(**whose, depends_on=(ready.id,))
    await enqueue(store, ready, blocked)
    return {
        State.COMPLETED: done,
        State.SCHEDULED: retried.job_id,
        State.FAILED: failed,
        State.RUNNING: running.job_id,
        State.READY: ready.id,
        State.BLOCKED: blocked.id,
    }


@dataclass
class World:
    """An isolated database with rows of acme, of globex and of no tenant in every table."""

    roles: LoginRoles
    jobs: dict[str | None, dict[str, UUID]] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    rows: dict[str, dict[str | None, set[str]]] = field(default_factory=dict)  # table -> tenant -> where they are

    @property
    def schema(self) -> str:
        return self.roles.schema

    def expected(self, *tenants: str | None) -> dict[str, set[str]]:
        return {name: set().union(*(whose[t] for t in tenants)) for name, whose in self.rows.items()}

    def store(self, role: str) -> AbstractAsyncContextManager[PostgresStore]:
        return opened(self.roles.url(role), self.schema)


@contextmanager
def isolated(server: Postgres, database: str, *, owner: str | None = "owner") -> Iterator[World]:
    """`owner` None: the schema belongs to a superuser, to whom row-level security does not apply."""
    server.drop_database(database)
    schema = new_schema()
    with dropped_after(server, database, schema, list(LOGINS)):
        roles = LoginRoles(server.create_database(database), schema)
        for role in LOGINS:
            roles.create(role, rights="CREATEROLE" if role == "owner" else "")
        roles.run("GRANT CREATE ON DATABASE {} TO {}", database, roles.name("owner"))
        asyncio.run(_isolate(roles, roles.superuser_url if owner is None else roles.url(owner)))
        for role, group in LOGINS.items():
            if group is not None:
                roles.run("GRANT {} TO {}", f"{schema}_{group}", roles.name(role))
        found = World(roles)
        asyncio.run(_fill(found))
        yield found


async def _isolate(roles: LoginRoles, owner_url: str) -> None:
    await PostgresStore(owner_url, schema=roles.schema).migrate()
    async with opened(owner_url, roles.schema) as owner:
        await owner.tenants.enable()
        assert await owner.tenants.bind(roles.name("acme"), "acme")
        assert not await owner.tenants.bind(roles.name("acme"), "acme")
        for tenant in ("acme", "globex"):
            await owner.tenants.bind(roles.name("both"), tenant)


async def _fill(world: World) -> None:
    tenants = ("acme", "globex", None)
    async with world.store("worker") as store:
        world.jobs = await fill(store, *tenants)
    async with world.store("operator") as store:
        for tenant in tenants:
            await store.tokens.put(api_token(tenant=tenant), f"hash of {tenant}")
            if tenant is not None:
                await store.shares.put(tenant, 2)
    for rows in (
        "limit_slot (job_id, admitted_at, name, key) SELECT id, now(), '', ''",
        "delivery (job_id, delivered_at, number, attempt) SELECT id, now(), 1, 0",
        "step (job_id, claim_id, started_at, position, name, kind, state, code, fingerprint)"
        " SELECT id, 1, now(), 0, 'a', 'call', 'done', '', ''",
        "sent_event (id, sent_at, expires_at, name, key, tenant) SELECT id, now(), now(), 'a', 'b', tenant",
    ):
        world.roles.run(f"INSERT INTO {{0}}.{rows} FROM {{0}}.job ON CONFLICT DO NOTHING", world.schema)
    rules = dict(world.roles.run("SELECT * FROM {}.tenant_rules()", world.schema))
    world.rules = {name: rule for name, rule in rules.items() if rule != "fleet"}
    assert set(rules) - set(world.rules) <= FLEET
    for name, rule in world.rules.items():
        whose = WHOSE[rule].replace("{schema}", world.schema)
        world.rows[name] = {"acme": set(), "globex": set(), None: set()}
        table = sql.Identifier(world.schema, name)
        for place, tenant in world.roles.run(f"SELECT t.ctid::text, {whose} FROM {{}} t", table):
            world.rows[name][tenant].add(place)
        # A share is one of a tenant.
        named = [found for tenant, found in world.rows[name].items() if tenant is not None or name != "share"]
        assert all(named), f"{name} has no rows of some tenant"
