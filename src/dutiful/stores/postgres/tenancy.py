"""Tenants in Postgres: on whose behalf statements run, and the guard that row-level security is."""

import copy
from collections.abc import Sequence
from typing import Any, Self

import asyncpg
import msgspec

from dutiful.core.errors import DutifulError, UsageError
from dutiful.core.tenant import EVERYONE, check_tenant
from dutiful.guarding import TenantMember, TenantStatus
from dutiful.stores.postgres import migrations
from dutiful.stores.postgres.reading import PostgresReading
from dutiful.stores.postgres.schema_name import check_guarded_schema


class PostgresTenancy(PostgresReading):
    _tenant: str | None = None  # on whose behalf, if tenants are on; None: they are off
    _no_worker: str | None = None  # our role, if tenants are on and it may not do all that a worker does

    @property
    def guarded(self) -> bool:
        return self._db.first is not None

    def for_tenant(self, tenant: str) -> Self:
        """Not where our role sees all tenants in any case: then only what is asked for keeps them apart."""
        check_tenant(tenant)
        self._db.check_open()
        if not self.guarded:
            return self
        scoped = copy.copy(self)
        scoped._tenant = tenant
        scoped._db = self._db.saying(self._acting_for(tenant))
        return scoped

    async def _learn_tenancy(self, connection: Any) -> None:
        enabled, everywhere, works, role = await connection.fetchrow(self._sql["tenancy"])
        self._tenant = EVERYONE if enabled else None
        self._no_worker = role if enabled and not works else None
        self._db.first = self._acting_for(EVERYONE) if enabled and not everywhere else None

    async def check_made(self) -> None:
        """Nothing is made when it is opened: what is missing is refused then."""

    def check_worker(self) -> None:
        if self._no_worker is not None:
            group = f"{self._schema}_worker"
            raise UsageError(
                f"tenants are on, and role {self._no_worker} is not in the group {group}, so it may not do all that a "
                f"worker does: grant {group} to {self._no_worker}, or log in as a role that is"
            )

    def _acting_for(self, tenant: str) -> str:
        return self._sql["act_for"].replace("{hex}", tenant.encode().hex())

    def _on_users(self, name: str, args: Sequence[Any]) -> tuple[str, list[Any]]:
        """A statement for the user's own connection: it names the tenant for itself, and leaves no trace of that."""
        if self._tenant is None:
            return self._sql[name], [*args]
        return self._sql[f"{name}_for"], [*args, self._tenant]

    # --- for those who set it up

    def tenants_sql(self) -> str:
        check_guarded_schema(self._schema)
        steps = ("tenant_groups", "let_owner_bind", "tenants_on", "record_tenants_on")
        lines = ("begin", self._check_alone(), *(self._sql[step] for step in steps), "commit")
        return "".join(f"{line};\n" for line in lines)

    async def enable_tenants(self) -> None:
        check_guarded_schema(self._schema)
        await self._alter(self._check_alone(), self._sql["tenant_groups"], self._sql["tenants_on"])

    async def disable_tenants(self) -> None:
        await self._alter(self._sql["tenants_off"])

    async def relearn_tenants(self) -> None:
        async with self._db.transaction() as connection:
            await self._learn_tenancy(connection)

    async def bind_tenant(self, role: str, tenant: str) -> bool:
        check_tenant(tenant)
        try:
            return bool((await self._db.fetch(self._sql["bind_tenant"], role, tenant))[0][0])
        except DutifulError as error:
            raise _told(error, error.__cause__) from error

    async def unbind_tenant(self, role: str, tenant: str | None = None) -> list[str]:
        return [row[0] for row in await self._db.fetch(self._sql["unbind_tenant"], role, tenant)]

    async def tenant_status(self) -> TenantStatus:
        status = (await self._db.fetch(self._sql["tenant_status"]))[0]
        members = [TenantMember(*row) for row in await self._db.fetch(self._sql["tenant_members"])]
        return TenantStatus(
            enabled=status["enabled"], role=status["role"], guarded=status["guarded"] or [], members=members
        )

    async def health(self) -> dict[str, Any]:
        """Besides: `problems`, each with its remedy."""
        facts = await super().health()
        definers = await self._db.fetch(self._sql["definers"])
        problems = [_DEFINER.told(row[0], self._schema) for row in definers]
        if self._tenant is not None:
            gaps = await self._db.fetch(self._sql["tenant_gaps"])
            problems += [_GAPS[gap].told(what, self._schema) for gap, what in gaps]
        return {**facts, "tenants": "off" if self._tenant is None else "on", "problems": problems}

    def _check_alone(self) -> str:
        return self._sql["check_alone"].replace("{ours}", migrations.own_names())

    async def _alter(self, *statements: str) -> None:
        """All or nothing; from now on this process goes by it."""
        try:
            async with self._db.transaction() as connection:
                for statement in statements:
                    await connection.execute(statement)
            async with self._db.transaction() as connection:
                await self._learn_tenancy(connection)
        except DutifulError as error:
            raise _told(error, error.__cause__) from error


class _Gap(msgspec.Struct, frozen=True):
    what: str
    remedy: str

    def told(self, name: str, schema: str) -> tuple[str, str]:
        return self.what.format(name=name, schema=schema), self.remedy.format(name=name, schema=schema)


_DEFINER = _Gap(
    "the function {name} runs with its owner's rights, but looks names up where its caller says",
    "alter function {name} set search_path = pg_catalog, pg_temp",
)
_AGAIN = "run `dutiful tenants on` again"
_GAPS = {
    "superuser": _Gap(
        "tenants are on, but this process connects as {name}, to whom row-level security does not apply",
        "connect as a login role in the group {schema}_application, or {schema}_worker for a worker",
    ),
    "table": _Gap("tenants are on, but the table {name} is not guarded", _AGAIN),
    "view": _Gap("tenants are on, but the view {name} shows all tenants to whoever may read it", _AGAIN),
    "member": _Gap(
        "role {name} is bound to tenants, but it can see all of them: it is a superuser, or in another group",
        "take it out of {schema}_application and {schema}_worker, or `dutiful tenants unbind {name}`",
    ),
}


def _told(error: DutifulError, cause: Any) -> DutifulError:
    """The database's own words where it has a remedy, or where the role may not do what was asked."""
    match cause:
        case asyncpg.exceptions.UndefinedObjectError() | asyncpg.exceptions.InvalidParameterValueError():
            return UsageError(f"{cause.args[0]}; {cause.hint}" if cause.hint else str(cause.args[0]))
        case asyncpg.exceptions.InsufficientPrivilegeError():
            return UsageError(
                f"this role may not do that ({cause.args[0]}): do it as the owner of the schema, who may create roles, "
                "or let a DBA run what `dutiful tenants on --sql` prints"
            )
    return error
