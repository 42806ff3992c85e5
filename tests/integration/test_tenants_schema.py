"""Tenants are separated only in a schema of Dutiful's own: tables of others are never taken over."""

import psycopg
import pytest

from databases import Postgres
from dutiful.core.errors import DataRefused, UsageError
from dutiful.stores.postgres import PostgresStore, migrations, schema_files
from tenanted import LoginRoles, dropped_after, new_schema, opened

pytestmark = pytest.mark.req("W67")


def run(url: str, script: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script.encode())


async def test_tenants_are_refused_in_a_schema_with_other_tables(
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
                await store.tenants.enable()
            with pytest.raises(psycopg.Error, match=r"customer, secret_report\(\)"):
                run(roles.superuser_url, store.tenants.sql())

            assert not (await store.tenants.status()).enabled
            assert roles.run("SELECT polname FROM pg_policy") == [("mine",)]
            roles.run("DROP TABLE {}.customer", schema)
            roles.run("DROP FUNCTION {}.secret_report()", schema)
            await store.tenants.enable()

            # A later migration does not take over tables that were added meanwhile.
            roles.run("CREATE TABLE {}.customer (tenant text)", schema)
            known = schema_files.migrations()
            more = schema_files.SchemaFile("9999_more", "create table {schema}.more (tenant text);")
            monkeypatch.setattr(migrations, "migrations", lambda: [*known, more])
            with pytest.raises(DataRefused, match="taken over: customer"):
                await store.migrate()
            roles.run("DROP TABLE {}.customer", schema)
            assert await store.migrate() == ["9999_more"]
            assert "more" in (await store.tenants.status()).isolated


def test_tenants_are_refused_in_the_public_schema() -> None:
    with pytest.raises(UsageError, match="public is shared by all"):
        PostgresStore("postgresql://localhost/shop", schema="public").tenants.sql()


@pytest.mark.parametrize("name", ["user", "order", "pg_jobs", "information_schema"])
def test_a_schema_cannot_have_a_name_that_postgres_keeps_for_itself(name: str) -> None:
    with pytest.raises(UsageError, match=f"schema '{name}' is a name that Postgres keeps for itself"):
        PostgresStore("postgresql://localhost/shop", schema=name)
