"""A schema with all groups that `dutiful roles` makes, and a login in each."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from databases import Postgres
from dutiful.stores.postgres import PostgresStore
from suite.builders import enqueue_one
from tenanted import LoginRoles, dropped_after, new_schema, opened

DATABASE = "dutiful_roles"
LOGINS = ("owner", "operator", "client", "worker", "member", "sql_worker", "reader", "nobody")
EXECUTABLE = """
    select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where n.nspname = %s and has_function_privilege(%s, p.oid, 'execute')
"""


class Roles:
    """A schema with all groups, a login in each and one in none."""

    def __init__(self, logins: LoginRoles) -> None:
        self.logins = logins
        self.schema = logins.schema

    def run(self, role: str, statement: str, *args: Any, tenant: str | None = None) -> list[tuple[Any, ...]]:
        """As one of the logins; {s} is the schema."""
        with psycopg.connect(self.logins.url(role), autocommit=True) as connection:
            if tenant is not None:
                connection.execute("select set_config('dutiful.tenant', %s, false)", [tenant])
            cursor = connection.execute(statement.replace("{s}", self.schema).encode(), args)
            return cursor.fetchall() if cursor.description else []

    def denied(self, role: str, statement: str, *args: Any) -> str:
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as raised:
            self.run(role, statement, *args)
        return str(raised.value)

    def enqueue(self, tenant: str | None = None) -> UUID:
        async def put() -> UUID:
            async with opened(self.logins.url("worker"), self.schema) as store:
                return await enqueue_one(store, tenant=tenant)

        return asyncio.run(put())

    def executable(self, role: str) -> set[str]:
        return {name for (name,) in self.as_superuser(EXECUTABLE, self.schema, self.logins.name(role))}

    def superuser(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.logins.superuser_url, autocommit=True)

    def as_superuser(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        with self.superuser() as connection:
            cursor = connection.execute(statement.encode(), args)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def made(server: Postgres, *, tenants: bool) -> Iterator[Roles]:
    schema = new_schema()
    server.drop_database(DATABASE)
    with dropped_after(server, DATABASE, schema, LOGINS):
        logins = LoginRoles(server.create_database(DATABASE), schema)
        for role in LOGINS:
            logins.create(role, rights="CREATEROLE" if role == "owner" else "")
        logins.run("GRANT CREATE ON DATABASE {} TO {}", DATABASE, logins.name("owner"))
        asyncio.run(_make(logins, tenants=tenants))
        for role in LOGINS[1:-1]:
            logins.run("GRANT {} TO {}", f"{schema}_{role}", logins.name(role))
        yield Roles(logins)


async def _make(logins: LoginRoles, *, tenants: bool) -> None:
    await PostgresStore(logins.url("owner"), schema=logins.schema).migrate()
    async with opened(logins.url("owner"), logins.schema) as store:
        await store.tenants.make_roles()
        if tenants:
            await store.tenants.enable()
            await store.tenants.bind(logins.name("member"), "acme")
        await store.tenants.make_roles()
