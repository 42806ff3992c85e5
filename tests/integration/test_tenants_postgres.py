"""Row-level security: what ordinary roles of the database see and can change, table by table."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from dutiful.core.ids import public
from dutiful.core.job import OnConflict, Scope, Unique
from dutiful.core.principal import Origin
from dutiful.core.review.audit import AuditOutcome
from dutiful.core.rules.rules import Rules
from dutiful.core.states import State
from dutiful.payload.sql_rules import PayloadRule
from dutiful.store.audit import AuditFilter
from dutiful.store.locks import LockName
from suite.audit import event, seal_all
from suite.builders import state
from tenanted import FLEET, World, isolated

pytestmark = pytest.mark.req("W67")

MEMBER_FUNCTIONS = {"own_tenants", "tenant_enqueue", "tenant_cancel"}


@dataclass
class Session:
    """A role that has logged in."""

    connection: Any
    world: World

    async def run(self, statement: str, *args: Any) -> list[Any]:
        return list(await self.connection.fetch(statement.replace("{schema}", self.world.schema), *args))

    async def sees(self) -> dict[str, set[str]]:
        """The visible rows of every readable table, by their positions."""
        seen = {}
        for name in self.world.rules:
            if await self.connection.fetchval(f"SELECT has_table_privilege('{self.world.schema}.{name}', 'SELECT')"):
                seen[name] = {row[0] for row in await self.run(f"SELECT ctid::text FROM {{schema}}.{name}")}
        return seen

    async def refused(self, statement: str, *args: Any) -> str:
        """The error of a statement that the database refuses."""
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            await self.run(statement, *args)
        except asyncpg.InsufficientPrivilegeError as error:
            return str(error)
        finally:
            await transaction.rollback()
        raise AssertionError(f"not refused: {statement}")


@asynccontextmanager
async def login(world: World, role: str, tenant: str | None = None) -> AsyncIterator[Session]:
    connection = await asyncpg.connect(world.roles.url(role))
    try:
        if tenant is not None:
            await connection.execute(f"SET dutiful.tenant = '{tenant}'")
        yield Session(connection, world)
    finally:
        await connection.close()


@pytest.fixture(scope="module", params=[("postgres18", "owner"), ("postgres16", None)], ids=["owned", "superusers"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Once with an ordinary owner, and once with one to whom row-level security does not apply."""
    server, owner = request.param
    with isolated(request.getfixturevalue(server), "dutiful_tenants_sql", owner=owner) as found:
        yield found


# --- members


@pytest.mark.parametrize("claimed", [None, "globex", "*"])
@pytest.mark.parametrize(("role", "tenants"), [("acme", ["acme"]), ("both", ["acme", "globex"]), ("none", [])])
async def test_a_member_sees_its_tenants_rows_and_no_others_whatever_it_sets(
    world: World, role: str, tenants: list[str], claimed: str | None
) -> None:
    async with login(world, role, claimed) as member:
        seen = await member.sees()

    assert seen == {name: rows for name, rows in world.expected(*tenants).items() if name in seen}
    assert {"job", "ready", "finished", "attempt", "dead_letter"} <= set(seen)
    assert not {"api_token", "audit_event", "unique_key", "schedule", "tombstone"} & set(seen)


async def test_views_show_a_member_what_the_tables_do(world: World) -> None:
    async with login(world, "acme") as member:
        seen = {row["id"]: row["state"] for row in await member.run("SELECT id, state FROM {schema}.jobs")}
        queues = {row[0] for row in await member.run("SELECT queue FROM {schema}.queue_health")}
        ended = await member.run("SELECT sum(jobs)::int FROM {schema}.job_metrics")
        runs = {row[0] for row in await member.run("SELECT id FROM {schema}.job_runs")}
        stuck = {row[0] for row in await member.run("SELECT id FROM {schema}.stuck_jobs")}
        live = await member.run("SELECT sum(jobs)::int FROM {schema}.kind_health WHERE state = 'ready'")
        assert await member.run("SELECT kind FROM {schema}.failing_kinds") == []

        for view in ("misplaced", "kind_metrics", "lane_utilisation", "breaker_status"):
            assert "permission denied" in await member.refused(f"SELECT * FROM {{schema}}.{view}")
    assert set(world.jobs["acme"].values()) <= set(seen)
    assert not {*world.jobs["globex"].values(), *world.jobs[None].values()} & set(seen)
    assert queues == {"of_acme"}
    assert len(runs) == len(world.rows["finished"]["acme"])
    assert ended[0][0] == len(runs) + len(world.rows["tombstone"]["acme"])  # also those that were deleted
    assert runs | stuck <= set(seen)
    assert len(stuck) == len(world.rows["lease"]["acme"])  # they all began long ago
    assert live[0][0] == len(world.rows["ready"]["acme"])


async def test_a_member_can_change_no_table_and_not_even_read_the_fleets(world: World) -> None:
    async with login(world, "both") as member:
        for name in [*world.rules, *FLEET]:
            for statement in (
                f"DELETE FROM {{schema}}.{name}",
                f"INSERT INTO {{schema}}.{name} DEFAULT VALUES",
                f"TRUNCATE {{schema}}.{name}",
                f"ALTER TABLE {{schema}}.{name} DISABLE ROW LEVEL SECURITY",
                f"CREATE POLICY more ON {{schema}}.{name} USING (true)",
            ):
                assert await member.refused(statement)
        for name in FLEET:
            assert "permission denied" in await member.refused(f"SELECT FROM {{schema}}.{name}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await member.connection.copy_records_to_table("job", schema_name=world.schema, records=[])


async def test_a_member_copies_out_its_own_rows_only(world: World) -> None:
    copied = bytearray()

    async def keep(data: bytes) -> None:
        copied.extend(data)

    async with login(world, "acme", "*") as member:
        await member.connection.copy_from_table("job", schema_name=world.schema, columns=["id"], output=keep)

    assert len(copied.split()) == len(world.rows["job"]["acme"])


async def test_a_member_can_neither_become_another_role_nor_bypass_row_level_security(world: World) -> None:
    async with login(world, "acme", "*") as member:
        for statement in (
            "SET ROLE {schema}_operator",
            "SET ROLE {schema}_worker",
            f"SET ROLE {world.roles.name('owner')}",
            "SET SESSION AUTHORIZATION postgres",
            f"SET SESSION AUTHORIZATION {world.roles.name('operator')}",
            "GRANT {schema}_worker TO CURRENT_USER",
            "INSERT INTO {schema}.tenant_role SELECT oid, 'globex' FROM pg_roles WHERE rolname = session_user",
            "CREATE FUNCTION {schema}.own_tenants(int) RETURNS text LANGUAGE sql AS 'select null'",
        ):
            assert await member.refused(statement)
        await member.run("SET row_security = off")
        assert "row-level security" in await member.refused("SELECT FROM {schema}.job")
        # A member's own function earlier in the search path is not called.
        await member.run("CREATE FUNCTION pg_temp.session_user() RETURNS name LANGUAGE sql AS 'select null::name'")
        await member.run("SET search_path = pg_temp, {schema}, public")
        await member.run("SET row_security = on")
        assert (await member.sees())["job"] == world.rows["job"]["acme"]


async def test_of_the_functions_a_member_may_call_those_that_are_made_for_it(world: World) -> None:
    async with login(world, "acme") as member:
        callable_ = await member.run(
            "SELECT DISTINCT proname::text FROM pg_proc"
            " WHERE pronamespace = '{schema}'::regnamespace AND has_function_privilege(oid, 'EXECUTE')"
        )

    assert {row[0] for row in callable_} == MEMBER_FUNCTIONS


async def test_a_member_enqueues_for_its_tenants_and_for_no_other(world: World) -> None:
    enqueue = "SELECT {schema}.tenant_enqueue($1, 'greet', '{\"name\": \"Ada\"}', p_queue => 'from_sql')"
    async with login(world, "acme", "globex") as member:
        transaction = member.connection.transaction()
        await transaction.start()
        [(job_id,)] = await member.run(enqueue, "acme")
        found = await member.run("SELECT tenant, state, created_by FROM {schema}.jobs WHERE id = $1", job_id)
        left = await member.run("SELECT current_setting('dutiful.tenant')")
        await transaction.rollback()
        for tenant in ("globex", "", "*", None):
            assert "is not bound to the tenant" in await member.refused(enqueue, tenant)

    assert [tuple(row) for row in found] == [("acme", "ready", world.roles.name("acme"))]
    assert left == [("globex",)]
    async with login(world, "none") as unbound:
        assert "is not bound to the tenant" in await unbound.refused(enqueue, "acme")


async def test_a_member_enqueues_with_every_option_of_enqueue(world: World) -> None:
    parameters = "SELECT pg_get_function_arguments('{schema}.%s'::regproc)"
    need, other = world.jobs["acme"][State.READY], world.jobs["globex"][State.READY]
    enqueue = "SELECT {schema}.tenant_enqueue('acme', 'greet', %s)"
    async with login(world, "worker") as worker:
        [(plain,)] = await worker.run(parameters % "enqueue")
        [(ours,)] = await worker.run(parameters % "tenant_enqueue")
    # A default may hold a comma, but none does.
    assert sorted(ours.replace("p_tenant text", "p_tenant text DEFAULT NULL::text").split(", ")) == sorted(
        plain.split(", ")
    )
    async with login(world, "acme") as member:
        transaction = member.connection.transaction()
        await transaction.start()
        options = f"""p_unique => 'one', p_delay => '1 hour', p_depends_on => array['{need}'::uuid], p_notify => false,
            p_webhook => 'https://example.org/hook', p_webhook_states => array['failed'], p_parent_id => '{need}',
            p_retry_of => '{need}', p_on_failure => 'run'"""
        first, again = [(await member.run(enqueue % options))[0][0] for _ in range(2)]
        found = "SELECT tenant, state, parent_id, retry_of, options, run_at > now() FROM {schema}.jobs WHERE id = $1"
        [(tenant, state_, parent, repeats, stored, later)] = await member.run(found, first)
        edges = await member.run("SELECT needs_id, policy FROM {schema}.dependency WHERE job_id = $1", first)
        await transaction.rollback()
        for named in ("p_parent_id => %r", "p_retry_of => %r", "p_depends_on => array[%r::uuid]"):
            with pytest.raises(asyncpg.ForeignKeyViolationError, match=str(other)):
                await member.run(enqueue % (named % str(other)))
        with pytest.raises(asyncpg.UniqueViolationError, match="is taken"):
            await member.run(enqueue % f"p_id => '{other}'")

    assert first == again and (tenant, state_, parent, repeats, later) == ("acme", "blocked", need, need, True)
    assert edges == [(need, "run")]
    assert json.loads(stored)["unique"] == "one" and json.loads(stored)["webhook"]["states"] == ["failed"]


async def test_a_member_cancels_its_own_jobs_and_finds_no_others(world: World) -> None:
    cancel = "SELECT state, changed FROM {schema}.tenant_cancel($1, 'not needed')"
    async with login(world, "acme", "*") as member:
        transaction = member.connection.transaction()
        await transaction.start()
        own = await member.run(cancel, world.jobs["acme"][State.READY])
        other = await member.run(cancel, world.jobs["globex"][State.READY])
        untenanted = await member.run(cancel, world.jobs[None][State.READY])
        await transaction.rollback()

    assert (own, other, untenanted) == ([("cancelled", True)], [], [])
    async with world.store("worker") as store:
        assert await state(store, world.jobs["globex"][State.READY]) is State.READY


async def test_a_member_who_enqueues_a_held_key_gets_an_error_and_no_job(world: World) -> None:
    enqueue = 'SELECT {schema}.tenant_enqueue($1, $2, \'{"key": "one"}\')'
    for kind, on_conflict in (("pay", OnConflict.REJECT), ("count", OnConflict.RETURN)):
        rules = Rules(required=["key"], unique=Unique("key", scope=Scope.FOREVER, on_conflict=on_conflict))
        async with world.store("worker") as store:
            await store.jobs.put_payload_rules({kind: PayloadRule.of(kind, rules)})
    try:
        async with login(world, "both") as member:
            transaction = member.connection.transaction()
            await transaction.start()
            (first, again, globex) = [(await member.run(enqueue, t, "count"))[0][0] for t in ("acme", "acme", "globex")]
            found = await member.run("SELECT id FROM {schema}.jobs WHERE id = any ($1)", [first, again, globex])
            [(holder,)] = await member.run(enqueue, "acme", "pay")
            with pytest.raises(asyncpg.UniqueViolationError, match=str(holder)):
                await member.run(enqueue, "acme", "pay")
            await transaction.rollback()
    finally:
        async with world.store("worker") as store:
            await store.jobs.put_payload_rules({"pay": None, "count": None})

    assert first == again != globex
    assert len(found) == 2


async def test_the_database_spells_ids_as_people_see_them(world: World) -> None:
    ids = [uuid4() for _ in range(200)] + [UUID(int=0), UUID(int=(1 << 128) - 1)]
    async with login(world, "worker") as worker:
        spelling = "SELECT {schema}.public_id(id) FROM unnest($1::uuid[]) WITH ORDINALITY u (id, n) ORDER BY n"
        spelt = await worker.run(spelling, ids)

    assert [row[0] for row in spelt] == [public(id_) for id_ in ids]


# --- operators


async def test_an_event_with_unknown_values_is_not_recorded(world: World) -> None:
    append = (
        "INSERT INTO {schema}.audit_event (id, act, at, principal, role, origin, action, outcome, tenant)"
        " VALUES (gen_random_uuid(), gen_random_uuid(), now(), 'x', $1, $2, 'a', $3, 'acme')"
    )
    async with login(world, "operator", "acme") as operator:
        for values in (("king", "api", "succeeded"), ("admin", "nonsense", "succeeded"), ("admin", "api", "so so")):
            with pytest.raises(asyncpg.CheckViolationError):
                await operator.run(append, *values)


@pytest.mark.parametrize(
    ("setting", "tenants"),
    [(None, []), ("", []), ("acme", ["acme"]), ("unknown", []), ("*", ["acme", "globex", None])],
)
async def test_an_operator_sees_the_tenant_that_it_names(
    world: World, setting: str | None, tenants: list[str | None]
) -> None:
    async with login(world, "operator", setting) as operator:
        assert await operator.sees() == world.expected(*tenants)


@pytest.mark.parametrize("world", [("postgres18", "owner")], indirect=True, ids=["owned"])
async def test_an_owner_who_names_no_tenant_sees_nothing_either(world: World) -> None:
    async with login(world, "owner") as owner:
        assert await owner.sees() == world.expected()
    async with login(world, "owner", "*") as owner:
        assert await owner.sees() == world.expected("acme", "globex", None)


async def test_a_tenant_named_for_a_transaction_is_forgotten_with_it(world: World) -> None:
    async with login(world, "operator") as operator:
        async with operator.connection.transaction():
            await operator.run("SELECT set_config('dutiful.tenant', 'acme', true)")
            assert (await operator.sees())["job"] == world.rows["job"]["acme"]

        assert (await operator.sees())["job"] == set()


async def test_an_operator_changes_the_rows_of_the_tenant_that_it_names(world: World) -> None:
    async with login(world, "operator", "acme") as operator:
        for name in world.rules:
            if name == "audit_event":
                assert "permission denied" in await operator.refused("DELETE FROM {schema}.audit_event")
                assert "permission denied" in await operator.refused("UPDATE {schema}.audit_event SET reason = ''")
                continue
            if name == "api_token":  # revoked, but kept
                assert "permission denied" in await operator.refused("DELETE FROM {schema}.api_token")
                continue
            transaction = operator.connection.transaction()
            await transaction.start()
            gone = {row[0] for row in await operator.run(f"DELETE FROM {{schema}}.{name} RETURNING ctid::text")}
            await transaction.rollback()
            assert gone == world.rows[name]["acme"], name


async def test_an_operator_writes_nothing_into_another_tenant(world: World) -> None:
    async with login(world, "operator", "acme") as operator:
        for name in [name for name, rule in world.rules.items() if rule == "column"]:
            moved = f'SELECT (jsonb_populate_record(t, \'{{"tenant": "globex"}}\')).* FROM {{schema}}.{name} t'
            assert "row-level security" in await operator.refused(
                f"INSERT INTO {{schema}}.{name} OVERRIDING SYSTEM VALUE {moved}"
            )
            if name != "audit_event":
                update = f"UPDATE {{schema}}.{name} SET tenant = 'globex'"
                refusal = "permission denied" if name == "job" else "row-level security"
                assert refusal in await operator.refused(update)
        other = world.jobs["globex"][State.READY]
        for statement in (
            "INSERT INTO {schema}.stale (job_id, stale_at) VALUES ($1, now())",
            "INSERT INTO {schema}.dependency (job_id, needs_id) VALUES ($1, $1)",
            "INSERT INTO {schema}.progress (job_id, updated_at) VALUES ($1, now())",
        ):
            assert "row-level security" in await operator.refused(statement, other)
        enqueue = "SELECT {schema}.enqueue('greet', p_tenant => 'globex')"
        assert "row-level security" in await operator.refused(enqueue)


# --- tests that leave rows behind: last, because those above compare all rows


async def test_a_members_cancel_is_audited_with_a_reason_of_limited_length(world: World) -> None:
    job_id = world.jobs["acme"][State.READY]
    async with login(world, "acme") as member:
        transaction = member.connection.transaction()
        await transaction.start()
        await member.run("SELECT * FROM {schema}.tenant_cancel($1, repeat('x', 10000000))", job_id)
        await member.run("SELECT * FROM {schema}.tenant_cancel($1, 'again')", job_id)
        errors = await member.run("SELECT errors #>> '{0,message}' FROM {schema}.finished WHERE job_id = $1", job_id)
        await transaction.commit()

    assert len(errors[0][0]) == 2_000
    async with world.store("worker") as store:
        again, event = await store.audit.search(AuditFilter(target=public(job_id)))
        assert (again.outcome, again.reason) == (AuditOutcome.FAILED, "again")
        assert (event.principal, event.origin, event.action) == (world.roles.name("acme"), Origin.SQL, "job.cancel")
        assert (event.outcome, event.tenant, event.reason) == (AuditOutcome.SUCCEEDED, "acme", "x" * 2_000)
        assert event.after == {"state": "cancelled", "changed": True, "requested": False}
        assert await seal_all(store)


async def test_a_member_cannot_stop_the_sealing_or_take_a_jobs_named_lock(world: World) -> None:
    name = LockName("edition", "globex")
    async with login(world, "acme") as member, world.store("worker") as store:
        await member.run("SELECT pg_advisory_lock(hashtextextended('{schema} audit', 0))")
        schema = world.schema
        for text in (f"{schema} edition", "edition"):
            for key in ('"globex"', "globex"):
                await member.run("SELECT pg_advisory_lock($1, $2)", first_bits(text), first_bits(key))
        assert "permission denied" in await member.refused("SELECT value FROM {schema}.meta")
        assert "permission denied" in await member.refused("SELECT FROM {schema}.audit_policy FOR UPDATE")

        await store.audit.append([event(tenant="acme")])
        async with asyncio.timeout(20):
            await seal_all(store)
            session = await store.locks.session(lambda: None)
            assert session is not None and await session.acquire(name, 5.0)
            other = await store.locks.session(lambda: None)
            assert other is not None and not await other.acquire(name, 0.05)
            await asyncio.gather(session.close(), other.close())


def first_bits(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big", signed=True)


async def test_a_worker_trims_nothing_younger_than_the_owner_keeps_events(world: World) -> None:
    trim = "SELECT {schema}.trim_audit(1000000, 'infinity')"
    async with world.store("worker") as store:
        await store.audit.append([event(at=datetime.now(UTC))])
        await seal_all(store)
    async with login(world, "worker") as worker:
        assert await worker.run(trim) == [(0,)]
        assert "permission denied" in await worker.refused("UPDATE {schema}.audit_policy SET keep = '1 us'")
        world.roles.run("UPDATE {}.audit_policy SET keep = '1 day'", world.schema)
        try:
            transaction = worker.connection.transaction()
            await transaction.start()
            await worker.run(trim)
            left = await worker.run("SELECT count(*) FROM {schema}.audit_event WHERE at > now() - interval '1 day'")
            await transaction.rollback()
        finally:
            world.roles.run("UPDATE {}.audit_policy SET keep = null", world.schema)

    assert left[0][0] >= 1


async def test_a_worker_makes_changes_and_restores_no_token_but_notes_its_use(world: World) -> None:
    async with login(world, "worker") as worker:
        copied = "id, name, role, tenant, created_at, created_by, expires_at"
        for statement in (
            f"INSERT INTO {{schema}}.api_token (hash, {copied}) SELECT 'beef', {copied} FROM {{schema}}.api_token",
            "UPDATE {schema}.api_token SET revoked_at = null",
            "UPDATE {schema}.api_token SET role = 'admin', tenant = null",
            "UPDATE {schema}.api_token SET hash = 'beef'",
            "DELETE FROM {schema}.api_token",
        ):
            assert "permission denied" in await worker.refused(statement)
    async with world.store("worker") as store:
        token, *_ = await store.tokens.all()
        await store.tokens.touch([token.id])
        used, *_ = [one for one in await store.tokens.all() if one.id == token.id]
    assert used.last_used_at is not None


@pytest.mark.parametrize("role", ["worker", "operator"])
async def test_what_is_never_changed_cannot_be(world: World, role: str) -> None:
    async with login(world, role, "*") as session:
        for statement in (
            "UPDATE {schema}.job SET payload = '{}'",
            "UPDATE {schema}.job SET tenant = 'globex'",
            "UPDATE {schema}.attempt SET outcome = 'completed'",
            "UPDATE {schema}.finished SET state = 'completed'",
            "DELETE FROM {schema}.api_token",
            "INSERT INTO {schema}.tenant_role (role, tenant) VALUES (1, 'acme')",
        ):
            assert "permission denied" in await session.refused(statement)
        assert "a job keeps its id" in await session.refused("UPDATE {schema}.job SET id = gen_random_uuid()")
