"""A schema with all groups that `dutiful roles` makes, and a login in each."""

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
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
    """A schema with all groups, a login in each and one in none.

    Each login keeps a session for each tenant, because to connect costs more than most statements.
    """

    def __init__(self, logins: LoginRoles) -> None:
        self.logins = logins
        self.schema = logins.schema
        self._sessions: dict[tuple[str, str | None], psycopg.Connection[Any]] = {}

    def run(self, role: str, statement: str, *args: Any, tenant: str | None = None) -> list[tuple[Any, ...]]:
        """As one of the logins; {s} is the schema."""
        return self._execute(self.logins.url(role), tenant, statement.replace("{s}", self.schema), args)

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
        return self._execute(self.logins.superuser_url, None, statement, args)

    def _execute(self, url: str, tenant: str | None, statement: str, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        session = self._sessions.get((url, tenant))
        if session is None:
            # Not prepared, because tests change what statements return.
            session = psycopg.connect(url, autocommit=True, prepare_threshold=None)
            self._sessions[url, tenant] = session
            if tenant is not None:
                session.execute("select set_config('dutiful.tenant', %s, false)", [tenant])
        cursor = session.execute(statement.encode(), args)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()


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
        with closing(Roles(logins)) as roles:
            yield roles


async def _make(logins: LoginRoles, *, tenants: bool) -> None:
    await PostgresStore(logins.url("owner"), schema=logins.schema).migrate()
    async with opened(logins.url("owner"), logins.schema) as store:
        await store.tenants.make_roles()
        if tenants:
            await store.tenants.enable()
            await store.tenants.bind(logins.name("member"), "acme")
        await store.tenants.make_roles()
