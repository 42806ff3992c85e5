"""A database for each run: Dutiful's schema and groups, then the application's, by files of plain SQL."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

import asyncpg

from dutiful import Dutiful
from examples.schemas import connect

SCHEMA = sorted((Path(__file__).parent / "schema").glob("*.sql"))
OWNER, WORKER, QUEUE_OWNER = "accounts_owner", "worker_service_user", "dutiful_owner"
PASSWORD = "for-this-example-only"
# What is not written by hand: comms.send_sms, which mirrors comms.send_email.
GENERATED_AFTER = "08_comms_sms.sql"
GENERATE = (
    "supervisor", "new", "comms.send_sms", "--channel", "sms", "--references", "comms.sms_message(sms_message_id)",
    "--before", "get_sms_payload", "--success", "record_sms_success", "--error", "record_sms_failure",
    "--worker-role", WORKER,
)  # fmt: skip


@dataclass(frozen=True)
class Patience:
    """How soon supervisors look again, doubled by each failure, and after how many failures they give up."""

    base_delay: timedelta = timedelta(seconds=10)
    max_attempts: int = 3


@dataclass(frozen=True)
class Database:
    """`url` is a superuser's, `worker_url` logs in as worker_service_user."""

    url: str
    worker_url: str

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        connection = await connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    async def rows(self, query: str, *args: Any) -> list[Any]:
        async with self.connected() as connection:
            found: list[Any] = await connection.fetch(query, *args)
            return found

    async def value(self, query: str, *args: Any) -> Any:
        async with self.connected() as connection:
            return await connection.fetchval(query, *args)


@asynccontextmanager
async def new_database(server_url: str, patience: Patience = Patience()) -> AsyncIterator[Database]:
    """Creates a database on the server, with everything installed; at the end, drops it and the roles that it made."""
    name = f"accounts_{uuid4().hex[:8]}"
    url = urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    connection = await connect(server_url)
    try:
        before = {row["rolname"] for row in await connection.fetch("select rolname from pg_roles")}
        await connection.execute(f"create database {name}")
        try:
            yield await install(url, patience)
        finally:
            await connection.execute(f"drop database {name} with (force)")
            # The groups first, because memberships depend on the role that granted them.
            for row in await connection.fetch("select rolname from pg_roles order by rolname = $1", QUEUE_OWNER):
                if row["rolname"] not in before:
                    with suppress(asyncpg.DependentObjectsStillExistError):  # of another database
                        await connection.execute(f"drop role {row['rolname']}")
    finally:
        await connection.close()


async def install(url: str, patience: Patience = Patience()) -> Database:
    """Installs Dutiful with an owner that cannot log in, then the application."""
    connection = await connect(url)
    try:
        await connection.execute(f"""
            do $$ begin
                create role {QUEUE_OWNER} nologin createrole;
            exception when duplicate_object then null;
            end $$;
            grant create on database {urlsplit(url).path[1:]} to {QUEUE_OWNER}""")
        _, generated = await asyncio.gather(_install_dutiful(url), _generate(patience))
        roles, *rest = SCHEMA
        async with connection.transaction():
            await connection.execute(roles.read_text())
            await connection.execute(f"alter role {WORKER} password '{PASSWORD}'")
            await connection.execute(f"set local role {OWNER}")
            for file in rest:
                await connection.execute(file.read_text())
                if file.name == GENERATED_AFTER:
                    await connection.execute(generated)
            await connection.execute(
                "update internal.setting set base_delay = $1, max_attempts = $2",
                patience.base_delay, patience.max_attempts,
            )  # fmt: skip
    finally:
        await connection.close()
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return Database(url, urlunsplit(parts._replace(netloc=f"{WORKER}:{PASSWORD}@{host}")))


async def _install_dutiful(url: str) -> None:
    """As `dutiful migrate` and `dutiful roles` do."""
    joined = "&" if urlsplit(url).query else "?"
    app = Dutiful(f"{url}{joined}options={quote(f'-c role={QUEUE_OWNER}')}")
    await app.make_store().migrate()
    async with app:
        await (await app.operator("setup")).tenants.make_roles()


async def _generate(patience: Patience) -> str:
    """As `dutiful supervisor new` writes it."""
    base = f"{round(patience.base_delay.total_seconds() * 1000)}ms"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dutiful.cli", *GENERATE, "--base", base, "--max-attempts", str(patience.max_attempts),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    written, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"dutiful {' '.join(GENERATE)} ended with {process.returncode}")
    return written.decode()
