"""Tenants are kept apart in a schema that is Dutiful's alone: what others keep is never taken over."""

import psycopg
import pytest

from databases import Postgres
from dutiful.core.errors import DataRefused, UsageError
from dutiful.stores.postgres import PostgresStore, migrations
from tenanted import LoginRoles, dropped_after, new_schema, opened

pytestmark = pytest.mark.req("W67")


def run(url: str, script: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script.encode())


async def test_tenants_are_refused_where_the_schema_holds_what_is_not_ours(
    postgres18: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, schema = "dutiful_shared_schema", new_schema()
    with dropped_after(postgres18, database, schema, ["web"]):
        roles = LoginRoles(postgres18.create_database(database), schema)
        await PostgresStore(roles.superuser_url, schema=schema).migrate()
        roles.create("web")
        roles.run("CREATE TABLE {}.customer (id int GENERATED ALWAYS AS IDENTITY, tenant text)", schema)
        roles.run("CREATE FUNCTION {}.secret_report() RETURNS int LANGUAGE sql AS 'SELECT 1'", schema)
        roles.run("CREATE POLICY mine ON {}.customer TO {} USING (true)", schema, roles.name("web"))

        async with opened(roles.superuser_url, schema) as store:
            with pytest.raises(UsageError, match=r"customer, secret_report\(\); move that elsewhere.* setting schema"):
                await store.enable_tenants()
            with pytest.raises(psycopg.Error, match=r"customer, secret_report\(\)"):
                run(roles.superuser_url, store.tenants_sql())

            assert not (await store.tenant_status()).enabled
            assert roles.run("SELECT polname FROM pg_policy") == [("mine",)]
            roles.run("DROP TABLE {}.customer", schema)
            roles.run("DROP FUNCTION {}.secret_report()", schema)
            await store.enable_tenants()

            # Nor does a later migration take over what came in the meantime.
            roles.run("CREATE TABLE {}.customer (tenant text)", schema)
            known = migrations.migrations()
            more = migrations.Migration("9999_more", "create table {schema}.more (tenant text);")
            monkeypatch.setattr(migrations, "migrations", lambda: [*known, more])
            with pytest.raises(DataRefused, match="taken over: customer"):
                await store.migrate()
            roles.run("DROP TABLE {}.customer", schema)
            assert await store.migrate() == ["9999_more"]
            assert "more" in (await store.tenant_status()).guarded


def test_tenants_are_refused_in_a_schema_that_is_everybodys() -> None:
    with pytest.raises(UsageError, match="public is everybody's"):
        PostgresStore("postgresql://localhost/shop", schema="public").tenants_sql()


@pytest.mark.parametrize("name", ["user", "order", "pg_jobs", "information_schema"])
def test_a_schema_cannot_have_a_name_that_postgres_keeps_for_itself(name: str) -> None:
    with pytest.raises(UsageError, match=f"schema '{name}' is a name that Postgres keeps for itself"):
        PostgresStore("postgresql://localhost/shop", schema=name)
