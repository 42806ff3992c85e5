"""A database with supervised processes: an ordinary role owns them, and a worker in SQL runs them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from databases import Postgres
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.postgres.supervisor_migration import migration
from dutiful.stores.postgres.supervisor_plan import plan
from tenanted import LoginRoles, dropped_after, new_schema, opened

LOGINS = ("owner", "client", "sql_worker", "nobody")
MESSAGES = """
    create schema if not exists comms;
    create table if not exists comms.email_message (
        email_message_id bigint primary key, to_address text not null, body text not null);
    insert into comms.email_message select n, 'ada@example.org', 'Hello ' || n from generate_series(1, 9) n;
"""
FILLED_IN = """
    create or replace function comms.get_send_email_payload(_payload jsonb) returns jsonb
    language sql security definer set search_path = pg_catalog, pg_temp as $$
        select jsonb_build_object('status', 'succeeded', 'payload', jsonb_build_object(
            'to_address', m.to_address, 'subject', 'Hello', 'body', m.body))
        from comms.send_email_attempt a
        join comms.send_email_task t using (send_email_task_id)
        join comms.email_message m using (email_message_id)
        where a.send_email_attempt_id = (_payload ->> 'send_email_attempt_id')::bigint
    $$;
"""
KICKOFF = "select comms.kickoff_send_email(%s)"
SUPERVISOR = "comms.send_email_supervisor"
TASK = {"send_email_task_id": 1}
Row = dict[str, Any]
Provider = Callable[[Row], Any]


class Refused(Exception):
    """A provider's."""


def refuse(request: Row) -> None:
    raise Refused(f"{request['to_address']} is unknown")


def outcomes(came: list[Row]) -> list[Any]:
    """Of the supervisor's runs."""
    return [one.get("payload", {}).get("outcome", one["status"]) for one in came if one["kind"] == "db_function"]


class Session:
    """A login; every statement is a transaction, unless one is open. {s} is Dutiful's schema."""

    def __init__(self, url: str, schema: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)
        self.schema = schema

    def rows(self, statement: str, *args: Any) -> list[Row]:
        cursor = self.connection.execute(statement.replace("{s}", self.schema).encode(), args or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *args: Any) -> Any:
        (row,) = self.rows(statement, *args)
        (value,) = row.values()
        return value


class Supervised:
    """One database; `owner` owns processes, `worker` runs them, `root` is a superuser."""

    def __init__(self, logins: LoginRoles) -> None:
        self.logins = logins
        self.schema = logins.schema
        self.root = Session(logins.superuser_url, self.schema)
        self.owner, self.worker = self.session("client"), self.session("sql_worker")

    def session(self, role: str) -> Session:
        return Session(self.logins.url(role), self.schema)

    def reset(self) -> None:
        for session in (self.owner, self.worker):
            session.connection.rollback()
        names = self.root.rows(
            "select nspname as name from pg_namespace where nspname not like 'pg\\_%%' and nspname not in (%s, %s, %s)",
            "information_schema",
            "public",
            self.schema,
        )
        for row in names:
            self.root.connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(row["name"])))
        self.root.rows(
            "truncate {s}.job, {s}.ready, {s}.scheduled, {s}.blocked, {s}.lease, {s}.finished, {s}.attempt, "
            "{s}.unique_key, {s}.dead_letter, {s}.pause cascade"
        )

    def close(self) -> None:
        for session in (self.root, self.owner, self.worker):
            session.connection.close()

    def generate(self, process: str = "comms.send_email", **options: Any) -> str:
        given = {"channel": "email", **options}
        if process == "comms.send_email":
            given.setdefault("references", ["comms.email_message(email_message_id)"])
        return migration(plan(process, schema=self.schema, **given))

    def make(self, process: str = "comms.send_email", **options: Any) -> None:
        """Generates it, and applies it in one transaction."""
        with self.owner.connection.transaction():
            self.owner.rows(self.generate(process, **options))

    def make_email(self) -> "Supervised":
        """The process comms.send_email, with a before handler that was filled in."""
        self.owner.rows(MESSAGES)
        self.make()
        self.owner.rows(FILLED_IN)
        return self

    # --- jobs that end, but not by their handlers

    def cancel(self, job: Row) -> None:
        self.root.rows("select {s}.cancel(%s, 'not needed', null)", job["id"])

    def forget(self, job: Row) -> None:
        """As retention does with one that was cancelled."""
        self.cancel(job)
        for table in ("finished where job_id", "job where id"):
            self.root.rows(f"delete from {{s}}.{table} = %s", job["id"])

    # --- the worker in SQL

    def run(self, function: str, payload: Any) -> Any:
        return self.worker.value("select {s}.run_function(%s, %s)", function, Jsonb(payload))

    def dequeue(self, *kinds: str) -> list[Row]:
        return self.worker.rows("select * from {s}.dequeue(%s)", list(kinds))

    def work(self, *channels: str, provider: Provider | None = None) -> list[Row]:
        """Runs all jobs that are due, as a worker would; returns what came of each."""
        done = []
        while jobs := self.dequeue("db_function", *channels):
            done += [self.work_one(job, provider) for job in jobs]
        return done

    def work_one(self, job: Row, provider: Provider | None = None) -> Row:
        payload = job["payload"]
        if job["kind"] == "db_function":
            with self.worker.connection.transaction():
                answer = self.run(payload["db_function"], payload)
                self.complete(job, {"status": answer["status"]})
            return {"kind": job["kind"], **answer}
        before = self.run(payload["before_handler"], payload)
        outcome: Row
        try:
            if before["status"] != "succeeded":
                raise Refused(f"before_handler returned {before['status']}")
            answer = None if provider is None else provider(before["payload"])
        except Refused as error:
            outcome, handler = {"error": str(error)}, "error_handler"
            result = {"status": "failed", "accepted": False}
        else:
            outcome, handler = {"worker_payload": answer}, "success_handler"
            result = {"status": "succeeded", "accepted": True}
        with self.worker.connection.transaction():
            answer = self.run(payload[handler], {"original_payload": payload, **outcome})
            self.complete(job, result)
        return {"kind": job["kind"], **answer}

    def complete(self, job: Row, result: Any = None, errors: Any = None) -> None:
        came = self.worker.value(
            "select {s}.complete_job(%s, %s, %s, %s)",
            job["job_id"],
            job["claim_id"],
            None if result is None else Jsonb(result),
            None if errors is None else Jsonb(errors),
        )
        assert came == "applied"

    def time_passes(self) -> None:
        """Promotes what is scheduled, as a day later."""
        self.root.rows("select {s}.promote(1000, '-infinity', %s)", self.now() + timedelta(days=1))

    def now(self) -> datetime:
        found: datetime = self.root.value("select clock_timestamp()")
        return found

    # --- what there is

    def jobs(self, kind: str | None = None) -> list[Row]:
        return self.root.rows(
            "select id, kind, state, payload, run_at, created_at, correlation_id from {s}.jobs "
            "where %s::text is null or kind = %s order by created_at, id",
            kind,
            kind,
        )

    def facts(self, process: str = "comms.send_email") -> Row:
        """The numbers of tasks, attempts, successes and failures, and the terminal message."""
        counts = {
            what: self.root.value(f"select count(*) from {process}_{table}")
            for what, table in (
                ("tasks", "task"),
                ("attempts", "attempt"),
                ("succeeded", "attempt_succeeded"),
                ("failed", "attempt_failed"),
            )
        }
        final = self.root.rows(f"select error_message from {process}_task_failed")
        return {**counts, "final": [row["error_message"] for row in final]}


@contextmanager
def supervised(server: Postgres, database: str, *, tenants: bool = False) -> Iterator[Supervised]:
    schema = new_schema()
    server.drop_database(database)
    with dropped_after(server, database, schema, LOGINS):
        logins = LoginRoles(server.create_database(database), schema)
        for role in LOGINS:
            logins.create(role, rights="CREATEROLE" if role == "owner" else "")
        for role in ("owner", "client"):
            logins.run("GRANT CREATE ON DATABASE {} TO {}", database, logins.name(role))
        asyncio.run(_make(logins, tenants=tenants))
        for role in ("client", "sql_worker"):
            logins.run("GRANT {} TO {}", f"{schema}_{role}", logins.name(role))
        found = Supervised(logins)
        yield found
        found.close()


async def _make(logins: LoginRoles, *, tenants: bool) -> None:
    await PostgresStore(logins.url("owner"), schema=logins.schema).migrate()
    async with opened(logins.url("owner"), logins.schema) as store:
        await store.tenants.make_roles()
        if tenants:
            await store.tenants.enable()
