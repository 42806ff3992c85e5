"""Tenants in Postgres: on whose behalf statements run, and their isolation by row-level security."""

from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from dutiful.core.errors import DutifulError, StoreUnavailable, UsageError
from dutiful.core.principal import ANY_TENANT, check_tenant
from dutiful.store.tenants import TenantMember, TenantStatus
from dutiful.stores.postgres import migrations
from dutiful.stores.postgres.engine.holders import lock_holders, remedy
from dutiful.stores.postgres.engine.sql import check_tenants_schema
from dutiful.stores.postgres.engine.subject import Subject

TENANT_GROUPS = ("operator", "worker", "member", "owner")
ALL_GROUPS = (*TENANT_GROUPS, "client", "sql_worker", "reader")


class PostgresTenants(Subject):
    _no_worker: str | None = None  # this role, if tenants are on and it may not do all that a worker does

    async def learn(self, connection: Any) -> None:
        """Reads whether tenants are on, and what this role may do."""
        enabled, everywhere, works, role = await connection.fetchrow(self._sql["tenancy"])
        session = self._session
        session.tenant = ANY_TENANT if enabled else None
        self._no_worker = role if enabled and not works else None
        session.db.first = session.acting_for(ANY_TENANT) if enabled and not everywhere else None

    def check_worker(self) -> None:
        if self._no_worker is not None:
            group = f"{self._schema}_worker"
            raise UsageError(
                f"tenants are on, and role {self._no_worker} is not in the group {group}, so it may not do all that a "
                f"worker does: grant {group} to {self._no_worker}, or log in as a role that is"
            )

    def sql(self) -> str:
        return self._script(TENANT_GROUPS, "bind_owner", "grant_owner_binding", "tenants_on", "record_tenants_on")

    def roles_sql(self) -> str:
        return self._script(ALL_GROUPS, "hand_over", "roles_on", "grant_owner_binding", "record_roles_on")

    async def make_roles(self) -> str | None:
        check_tenants_schema(self._schema)
        steps = (self._sql["hand_over"], self._sql["roles_on"])
        await self._alter(self._check_alone(), self._make_groups(ALL_GROUPS), *steps)
        owners = await self._db.fetch(self._sql["login_owner"])
        return str(owners[0][0]) if owners else None

    async def enable(self) -> None:
        check_tenants_schema(self._schema)
        steps = (self._sql["bind_owner"], self._sql["tenants_on"])
        await self._alter(self._check_alone(), self._make_groups(TENANT_GROUPS), *steps)

    async def disable(self) -> None:
        await self._alter(self._sql["tenants_off"])

    async def refresh(self) -> None:
        async with self._db.transaction() as connection:
            await self.learn(connection)

    async def bind(self, role: str, tenant: str) -> bool:
        check_tenant(tenant)
        try:
            return bool(await self._call("bind_tenant", role, tenant))
        except DutifulError as error:
            raise _explain(error, error.__cause__) from error

    async def unbind(self, role: str, tenant: str | None = None) -> list[str]:
        return [row[0] for row in await self._db.fetch(self._sql["unbind_tenant"], role, tenant)]

    async def status(self) -> TenantStatus:
        status = (await self._db.fetch(self._sql["tenant_status"]))[0]
        members = [TenantMember(*row) for row in await self._db.fetch(self._sql["tenant_members"])]
        return TenantStatus(
            enabled=status["enabled"], role=status["role"], isolated=status["isolated"] or [], members=members
        )

    async def health(self) -> dict[str, Any]:
        """Whether tenants are on; and `problems`, each with its remedy."""
        definers = await self._db.fetch(self._sql["definers"])
        problems = [_DEFINER.problem(row[0], self._schema) for row in definers]
        if self._session.tenant is not None:
            gaps = await self._db.fetch(self._sql["tenant_gaps"])
            problems += [_GAPS[gap].problem(what, self._schema) for gap, what in gaps]
        return {"tenants": "off" if self._session.tenant is None else "on", "problems": problems}

    def _script(self, groups: Sequence[str], *steps: str) -> str:
        check_tenants_schema(self._schema)
        statements = (self._check_alone(), self._make_groups(groups), *(self._sql[step] for step in steps))
        lines = ("begin", *statements, "commit")
        return "".join(f"{line};\n" for line in lines)

    def _check_alone(self) -> str:
        return self._sql["check_alone"].replace("{ours}", migrations.own_names())

    def _make_groups(self, groups: Sequence[str]) -> str:
        names = ", ".join(f"'{self._schema}_{group}'" for group in groups)
        return self._sql["make_groups"].replace("{groups}", names)

    async def _alter(self, *statements: str) -> None:
        """Runs the statements in one transaction, and reads the new state."""
        try:
            async with self._db.transaction() as connection:
                for statement in statements:
                    await connection.execute(statement)
            async with self._db.transaction() as connection:
                await self.learn(connection)
        except DutifulError as error:
            if isinstance(error.__cause__, asyncpg.exceptions.LockNotAvailableError):
                held = await lock_holders(self._db, self._schema, "")
                raise StoreUnavailable(
                    f"nothing was changed: a table is locked by {held}; {remedy(held)}, then try again"
                ) from error
            raise _explain(error, error.__cause__) from error


class _Gap(msgspec.Struct, frozen=True):
    what: str
    remedy: str

    def problem(self, name: str, schema: str) -> tuple[str, str]:
        return self.what.format(name=name, schema=schema), self.remedy.format(name=name, schema=schema)


_DEFINER = _Gap(
    "the function {name} runs with its owner's rights, but looks names up where its caller says",
    "alter function {name} set search_path = pg_catalog, pg_temp",
)
_AGAIN = "run `dutiful tenants on` again"
_GAPS = {
    "superuser": _Gap(
        "tenants are on, but this process connects as {name}, to whom row-level security does not apply",
        "connect as a login role in the group {schema}_operator, or {schema}_worker for a worker",
    ),
    "owner": _Gap(
        "tenants are on, but the schema belongs to {name}, whose functions row-level security does not bind",
        _AGAIN + " as a superuser",
    ),
    "table": _Gap("tenants are on, but the table {name} is not isolated", _AGAIN),
    "view": _Gap("tenants are on, but the view {name} shows all tenants to every role that may read it", _AGAIN),
    "member": _Gap(
        "role {name} is bound to tenants, but it can see all of them: it is a superuser, or in another group",
        "take it out of the other groups of {schema}, or `dutiful tenants unbind {name}`",
    ),
}


def _explain(error: DutifulError, cause: Any) -> DutifulError:
    """Passes on the database's message where it has a remedy, or where the role lacks a privilege."""
    match cause:
        case asyncpg.exceptions.UndefinedObjectError() | asyncpg.exceptions.InvalidParameterValueError():
            return UsageError(f"{cause.args[0]}; {cause.hint}" if cause.hint else str(cause.args[0]))
        case asyncpg.exceptions.InsufficientPrivilegeError():
            return UsageError(
                f"this role may not do that ({cause.args[0]}): do it as the owner of the schema, who may create roles, "
                "or let a DBA run what `dutiful tenants on --sql` or `dutiful roles --sql` prints"
            )
    return error
