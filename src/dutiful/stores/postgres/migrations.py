"""Brings a database's schema up to date; can be repeated.

Numbered files are applied once each. Files of functions and views are applied whenever they differ from what the
database has, unless that is of a newer release: older workers can use newer functions, but not vice versa.
"""

import asyncio
import logging
import re
import time
from datetime import timedelta
from typing import Any

import asyncpg

from dutiful.core.errors import SchemaMismatch, StoreUnavailable
from dutiful.stores.postgres.engine.holders import lock_holders, remedy
from dutiful.stores.postgres.schema_files import SchemaFile, functions, migrations

log = logging.getLogger("dutiful.startup")
SCHEMA_VERSION = 1
"""Raised by every release that changes tables or functions; a migration has the number of its release."""
OLDEST_VERSION = 1
"""The oldest release's SCHEMA_VERSION that can work with the schema as this release leaves it."""
WAIT = timedelta(minutes=1)
_PATIENCE, _PAUSE = "2s", 1.0
_SCRIPT_PATIENCE = "10s"
_MADE = re.compile(
    r"^create (?:or replace )?(table|view|sequence|function)(?: if not exists)? \{schema\}\.(\w+)", re.MULTILINE
)


def script(schema: str) -> str:
    """The whole migration as a script for a DBA to run with psql; on an older schema it applies what is missing."""
    parts = [_become_owner(schema), _prelude(schema), _refuse_newer(schema)]
    parts += [_once(file, schema) for file in migrations()]
    parts += [f"-- {file.name}\n{render(file.sql, schema)}\n{_record(file, schema)}" for file in functions()]
    # It gives up instead of keeping all statements waiting behind it; it can be run again.
    limit = f"set local lock_timeout = '{_SCRIPT_PATIENCE}';\n\n"
    return "begin;\n" + limit + "\n\n".join([*parts, _versions(schema), _renew_isolation(schema)]) + "\n\ncommit;\n"


def render(sql: str, schema: str) -> str:
    return sql.replace("{schema}", schema)


def own_names() -> str:
    """The names of everything that the files create, functions with (), as an SQL array."""
    text = "\n".join([_prelude("{schema}"), *(file.sql for file in [*migrations(), *functions()])])
    names = {f"{name}()" if what == "function" else name for what, name in _MADE.findall(text)}
    return "{" + ",".join(sorted(names)) + "}"


async def migrate(connection: Any, schema: str, wait: timedelta) -> list[str]:
    """Applies what is missing or differs, in one transaction; concurrent calls queue on a lock.

    Workers continue meanwhile. A lock that is held for long is waited for in short turns, because all statements on a
    table queue behind a migration that waits for it. StoreUnavailable says who holds it, after `wait`.
    """
    until, waited_for = time.monotonic() + wait.total_seconds(), ""
    while True:
        try:
            return await _migrate(connection, schema)
        except (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError) as error:
            held = await lock_holders(connection, schema, _lock_name(schema))
            if held != waited_for:
                log.warning("the migration of schema %s waits for a lock that is held by %s", schema, held)
            waited_for = held
            if time.monotonic() + _PAUSE >= until:
                raise StoreUnavailable(
                    f"schema {schema} was not migrated: in {wait} it did not get a lock that is held by {held}; "
                    f"{remedy(held)}, then try again, or wait longer: `dutiful migrate --wait 10m`"
                ) from error
        await asyncio.sleep(_PAUSE)


def _lock_name(schema: str) -> str:
    return f"dutiful migrate {schema}"


async def _migrate(connection: Any, schema: str) -> list[str]:
    applied: list[str] = []
    async with connection.transaction():
        # Before any lock: every role that may connect can take the advisory one, and keep it.
        await connection.execute(f"set local lock_timeout = '{_PATIENCE}'")
        # Taken for the transaction, so that it also works behind a transaction pooler.
        await connection.execute("select pg_advisory_xact_lock(hashtext($1))", _lock_name(schema))
        await connection.execute(_become_owner(schema))
        await connection.execute(_prelude(schema))
        known = await _recorded(connection, schema)
        for file in migrations():
            if file.name not in known:
                await _apply(connection, file, schema)
                applied.append(file.name)
            elif known[file.name] != file.checksum:
                raise SchemaMismatch(
                    f"migration {file.name} was applied in another form than this release has",
                    "install the release that made this schema, or migrate into a new one",
                )
        if await _version(connection, schema) <= SCHEMA_VERSION:
            # Read again, because a migration that drops a view deletes the record of its file.
            known = await _recorded(connection, schema)
            for file in functions():
                if known.get(file.name) != file.checksum:
                    await _apply(connection, file, schema)
                    applied.append(file.name)
        await connection.execute(_versions(schema))
        if applied:
            await connection.execute(_renew_isolation(schema))
    return applied


async def check(connection: Any, schema: str) -> None:
    """Raises SchemaMismatch unless this release can work with the database as it is."""
    exists = await connection.fetchval("select to_regclass($1)", f"{schema}.meta")
    if exists is None:
        raise SchemaMismatch(f"the database has no schema {schema!r} of Dutiful")
    rows = await connection.fetch(f"select key, value from {schema}.meta")
    meta = {row["key"]: row["value"] for row in rows}
    version, oldest = int(meta.get("schema_version", "0")), int(meta.get("oldest_version", "0"))
    if version < SCHEMA_VERSION:
        raise SchemaMismatch(f"the database is at schema version {version}, this release needs {SCHEMA_VERSION}")
    if oldest > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the database is at schema version {version} and newer than this release can work with "
            f"(it knows {SCHEMA_VERSION}, the database asks for at least {oldest})",
            "upgrade dutiful",
        )


async def _recorded(connection: Any, schema: str) -> dict[str, str]:
    rows = await connection.fetch(f"select name, checksum from {schema}.migration")
    return {row["name"]: row["checksum"] for row in rows}


async def _version(connection: Any, schema: str) -> int:
    value = await connection.fetchval(f"select value from {schema}.meta where key = 'schema_version'")
    return int(value or 0)


async def _apply(connection: Any, file: SchemaFile, schema: str) -> None:
    await connection.execute(render(file.sql, schema))
    await connection.execute(_record(file, schema))


def _become_owner(schema: str) -> str:
    """Makes what is created belong to the owner of the schema, if this role is a member of it."""
    return (
        "do $owner$\n"
        f"declare v_owner name := (select pg_get_userbyid(nspowner) from pg_namespace where nspname = '{schema}');\n"
        "begin\n"
        "    if v_owner <> current_user and pg_has_role(v_owner, 'set') then\n"
        "        execute format('set local role %I', v_owner);\n"
        "    end if;\n"
        "end $owner$;"
    )


def _prelude(schema: str) -> str:
    return (
        # Because row-level security may apply even to the owner.
        "set local dutiful.tenant = '*';\n"
        # An owner that exists need not have the right to create schemas, which `if not exists` asks for all the same.
        "do $schema$ begin\n"
        f"    if to_regnamespace('{schema}') is null then create schema {schema}; end if;\n"
        "end $schema$;\n"
        f"create table if not exists {schema}.migration (\n"
        "    name text primary key, checksum text not null, applied_at timestamptz not null default now()\n);"
    )


def _record(file: SchemaFile, schema: str) -> str:
    return (
        f"insert into {schema}.migration (name, checksum) values ('{file.name}', '{file.checksum}') "
        "on conflict (name) do update set checksum = excluded.checksum, applied_at = excluded.applied_at;"
    )


def _once(file: SchemaFile, schema: str) -> str:
    """A file for the script, in a block that checks whether it was applied before."""
    return (
        f"-- {file.name}\n"
        f"do $once$ begin if not exists (select from {schema}.migration where name = '{file.name}') then\n"
        f"execute $migration$\n{render(file.sql, schema)}$migration$;\n"
        f"{_record(file, schema)}\n"
        "end if; end $once$;"
    )


def _refuse_newer(schema: str) -> str:
    """The part of a script that keeps an older release from replacing newer functions."""
    return (
        f"do $once$ begin if to_regclass('{schema}.meta') is not null then\n"
        f"if (select value::int from {schema}.meta where key = 'schema_version') > {SCHEMA_VERSION} then\n"
        f"raise exception 'the schema {schema} was made by a newer release than this script: nothing was changed';\n"
        "end if; end if; end $once$;"
    )


def _renew_isolation(schema: str) -> str:
    """Gives new tables and functions the same rights and policies as the others, if roles or tenants are on."""
    on = f"{schema}.tenants_enabled() or {schema}.roles_enabled()"
    return f"select {schema}.check_alone('{own_names()}') where {on};\nselect {schema}.roles_on() where {on};"


def _versions(schema: str) -> str:
    # greatest(): a migration by an older release must not undo what a newer one has written.
    return (
        f"insert into {schema}.meta as m (key, value) values "
        f"('schema_version', '{SCHEMA_VERSION}'), ('oldest_version', '{OLDEST_VERSION}')\n"
        "on conflict (key) do update set value = greatest(m.value::int, excluded.value::int)::text;"
    )
