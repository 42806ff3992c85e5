"""Numbered SQL files, applied once each, each in its own transaction; running them again is harmless."""

import hashlib
import re
from importlib import resources
from typing import Any

import msgspec

from dutiful.core.errors import SchemaMismatch

SCHEMA_VERSION = 28
"""The number of the newest migration that this release knows."""
OLDEST_VERSION = 28
"""The oldest release's SCHEMA_VERSION that can work with the tables as this release leaves them."""
_MADE = re.compile(r"^create (table|view|sequence|function)(?: if not exists)? \{schema\}\.(\w+)", re.MULTILINE)


class Migration(msgspec.Struct, frozen=True):
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    folder = resources.files(__package__) / "migrations"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [Migration(f.name.removesuffix(".sql"), f.read_text()) for f in files]


def script(schema: str) -> str:
    """All of it as one script that a DBA can read and run with psql."""
    parts = [_prelude(schema)]
    parts += [f"-- {m.name}\n{render(m.sql, schema)}\n{_record(m, schema)}" for m in migrations()]
    return "begin;\n\n" + "\n\n".join([*parts, _versions(schema), _guard(schema)]) + "\n\ncommit;\n"


def render(sql: str, schema: str) -> str:
    return sql.replace("{schema}", schema)


def own_names() -> str:
    """Of all that the migrations make, functions with (), as a literal array; whatever else there is is not ours."""
    text = "\n".join([_prelude("{schema}"), *(m.sql for m in migrations())])
    names = {f"{name}()" if what == "function" else name for what, name in _MADE.findall(text)}
    return "{" + ",".join(sorted(names)) + "}"


async def migrate(connection: Any, schema: str) -> list[str]:
    """Apply what is missing; two at once queue on a lock, and a crash in the middle leaves nothing half done."""
    applied: list[str] = []
    async with connection.transaction():
        # Taken for the transaction, so that it also works behind a transaction pooler.
        await connection.execute("select pg_advisory_xact_lock(hashtext($1))", f"dutiful migrate {schema}")
        await connection.execute(_prelude(schema))
        rows = await connection.fetch(f"select name, checksum from {schema}.migration")
        known = {row["name"]: row["checksum"] for row in rows}
        for migration in migrations():
            if migration.name not in known:
                await connection.execute(render(migration.sql, schema))
                await connection.execute(_record(migration, schema))
                applied.append(migration.name)
            elif known[migration.name] != migration.checksum:
                raise SchemaMismatch(
                    f"migration {migration.name} was applied in another form than this release has",
                    "install the release that made this schema, or migrate into a new one",
                )
        await connection.execute(_versions(schema))
        if applied:
            await connection.execute(_guard(schema))
    return applied


async def check(connection: Any, schema: str) -> None:
    """Raise SchemaMismatch unless this release can work with the database as it is."""
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


def _prelude(schema: str) -> str:
    return (
        # For an owner whom row-level security keeps in bounds, too.
        "set local dutiful.tenant = '*';\n"
        f"create schema if not exists {schema};\n"
        f"create table if not exists {schema}.migration (\n"
        "    name text primary key, checksum text not null, applied_at timestamptz not null default now()\n);"
    )


def _record(migration: Migration, schema: str) -> str:
    return (
        f"insert into {schema}.migration (name, checksum) values ('{migration.name}', '{migration.checksum}') "
        "on conflict (name) do nothing;"
    )


def _guard(schema: str) -> str:
    """What a migration has added is guarded as the rest is."""
    return (
        f"select {schema}.check_alone('{own_names()}') where {schema}.tenants_enabled();\n"
        f"select {schema}.tenants_on() where {schema}.tenants_enabled();"
    )


def _versions(schema: str) -> str:
    # greatest(): a migrate run by an older release must not take back what a newer one has written.
    return (
        f"insert into {schema}.meta as m (key, value) values "
        f"('schema_version', '{SCHEMA_VERSION}'), ('oldest_version', '{OLDEST_VERSION}')\n"
        "on conflict (key) do update set value = greatest(m.value::int, excluded.value::int)::text;"
    )
