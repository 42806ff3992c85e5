"""A database with channels: handlers in SQL that record facts, and a worker's login that may execute them, only."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from databases import Postgres
from dutiful.channels import Channels
from dutiful.channels.sql_worker import SqlWorker, SqlWorkerConfig
from dutiful.factory import make_sql_worker
from dutiful.settings import Settings
from dutiful.stores.postgres import PostgresStore
from tenanted import LoginRoles, dropped_after, new_schema, opened

Row = dict[str, Any]
DATABASE = "dutiful_channels"
LOGINS = ("owner", "sql_worker", "nobody")
HANDLERS = ("comms.get_request", "comms.record_success", "comms.record_failure")
# The facts of an attempt, the payloads that each handler got, and handlers that record both.
COMMS = """
create schema comms;
create table comms.seen (n bigserial, handler text, payload jsonb, pid int);
create table comms.succeeded (attempt_id bigint primary key, worker_payload jsonb);
create table comms.failed (attempt_id bigint primary key, error text);
create function comms.get_request(p jsonb) returns jsonb language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into comms.seen (handler, payload, pid) values ('before', p, pg_backend_pid());
    return coalesce(p -> 'answer', jsonb_build_object(
        'status', 'succeeded', 'payload', coalesce(p -> 'request', jsonb_build_object('n', p -> 'attempt_id'))));
end $$;
create function comms.record_success(p jsonb) returns jsonb language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into comms.seen (handler, payload, pid) values ('success', p, pg_backend_pid());
    insert into comms.succeeded values ((p -> 'original_payload' ->> 'attempt_id')::bigint, p -> 'worker_payload')
    on conflict do nothing;
    return '{"status": "succeeded"}';
end $$;
create function comms.record_failure(p jsonb) returns jsonb language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into comms.seen (handler, payload, pid) values ('error', p, pg_backend_pid());
    insert into comms.failed values (coalesce((p -> 'original_payload' ->> 'attempt_id')::bigint, 0), p ->> 'error')
    on conflict do nothing;
    return '{"status": "succeeded"}';
end $$;
create function comms.answer(p jsonb) returns jsonb language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    insert into comms.seen (handler, payload, pid) values ('answer', p, pg_backend_pid());
    return p -> 'answer';
end $$;
"""


class ChannelWorld:
    """Calls as the owner; `url` logs the worker in."""

    def __init__(self, logins: LoginRoles) -> None:
        self.logins = logins
        self.schema = logins.schema
        self.url = logins.url("sql_worker")
        self._owner = psycopg.connect(logins.url("owner"), autocommit=True, row_factory=dict_row)

    def run(self, statement: str, *args: Any) -> list[Row]:
        """As the owner; {s} is the schema."""
        cursor = self._owner.execute(statement.replace("{s}", self.schema).encode(), args or None)
        return cursor.fetchall() if cursor.description else []

    def define(self, name: str, body: str, *, grant: bool = True) -> str:
        """A function of comms in plpgsql that the worker may run; returns its name."""
        self.run(
            f"create or replace function comms.{name}(p jsonb) returns jsonb language plpgsql security definer"
            f" set search_path = pg_catalog, pg_temp as $$ begin {body} end $$"
        )
        self.run(f"revoke execute on function comms.{name} from public")
        if grant:
            self.run(f"grant execute on function comms.{name} to {{s}}_sql_worker")
        return f"comms.{name}"

    def enqueue(self, kind: str, payload: Any, *, run_at: str | None = None) -> UUID:
        (row,) = self.run(
            "select {s}.enqueue(%s, %s, p_run_at => %s::timestamptz, p_correlation_id => 'test') as id",
            kind, Jsonb(payload), run_at,
        )  # fmt: skip
        found: UUID = row["id"]
        return found

    def send(self, channel: str, attempt_id: int = 1, **more: Any) -> UUID:
        """A job of a channel with all three handlers."""
        names = dict(zip(("before_handler", "success_handler", "error_handler"), HANDLERS, strict=True))
        return self.enqueue(channel, {"task_type": channel, "attempt_id": attempt_id, **names, **more})

    def call(self, function: str, **payload: Any) -> UUID:
        return self.enqueue("db_function", {"task_type": "db_function", "db_function": function, **payload})

    def job(self, job_id: UUID) -> Row:
        (row,) = self.run("select * from {s}.look_up_job(%s)", job_id)
        return row

    def seen(self) -> list[str]:
        return [row["handler"] for row in self.run("select handler from comms.seen order by n")]

    def payloads(self, handler: str) -> list[Any]:
        rows = self.run("select payload from comms.seen where handler = %s order by n", handler)
        return [row["payload"] for row in rows]

    def facts(self) -> tuple[list[int], list[int]]:
        """The attempts that succeeded, and those that failed."""
        return (
            [row["attempt_id"] for row in self.run("select attempt_id from comms.succeeded order by 1")],
            [row["attempt_id"] for row in self.run("select attempt_id from comms.failed order by 1")],
        )

    def errors(self, job_id: UUID) -> list[str]:
        return [error["message"] for error in self.job(job_id)["errors"] or []]

    async def ended(self, *jobs: UUID, within: float = 30) -> list[Row]:
        """Waits until these jobs are in a final state."""
        async with asyncio.timeout(within):
            while True:
                rows = [self.job(job_id) for job_id in jobs]
                if all(row["finished_at"] is not None for row in rows):
                    return rows
                await asyncio.sleep(0.02)

    def reset(self) -> None:
        tables = "job, ready, scheduled, blocked, lease, finished, attempt, dead_letter, unique_key, leader"
        self.run("truncate " + ", ".join(f"{{s}}.{name}" for name in tables.split(", ")) + " cascade")
        self.run("truncate comms.seen, comms.succeeded, comms.failed")

    def close(self) -> None:
        self._owner.close()


@contextmanager
def channel_world(server: Postgres) -> Iterator[ChannelWorld]:
    schema = new_schema()
    server.drop_database(DATABASE)
    with dropped_after(server, DATABASE, schema, LOGINS):
        logins = LoginRoles(server.create_database(DATABASE), schema)
        for role in LOGINS:
            logins.create(role, rights="CREATEROLE" if role == "owner" else "")
        logins.run("GRANT CREATE ON DATABASE {} TO {}", DATABASE, logins.name("owner"))
        asyncio.run(_make(logins))
        logins.run("GRANT {} TO {}", f"{schema}_sql_worker", logins.name("sql_worker"))
        world = ChannelWorld(logins)
        world.run(COMMS)
        world.run("revoke execute on all functions in schema comms from public")
        world.run("grant usage on schema comms to {s}_sql_worker")
        world.run("grant execute on all functions in schema comms to {s}_sql_worker")
        try:
            yield world
        finally:
            world.close()


async def _make(logins: LoginRoles) -> None:
    await PostgresStore(logins.url("owner"), schema=logins.schema).migrate()
    async with opened(logins.url("owner"), logins.schema) as store:
        await store.tenants.make_roles()


def worker(world: ChannelWorld, channels: Channels | None = None, **options: Any) -> SqlWorker:
    config = SqlWorkerConfig(
        **{
            "worker_id": uuid4(),
            "concurrency": 4,
            "lease": timedelta(seconds=30),
            "grace": timedelta(seconds=10),
            "poll": timedelta(milliseconds=100),
            **options,
        }
    )
    return make_sql_worker(Settings(database_url=world.url, schema=world.schema), channels or Channels(), config)


@asynccontextmanager
async def serving(world: ChannelWorld, channels: Channels | None = None, **options: Any) -> AsyncIterator[SqlWorker]:
    """A worker in this process, with the login that may only execute functions."""
    made = worker(world, channels, **options)
    running = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        made.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(running), 20)
        if not running.done():
            running.cancel()
        await asyncio.gather(running, return_exceptions=True)
