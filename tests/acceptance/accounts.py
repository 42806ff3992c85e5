"""The example accounts, installed once for a file of tests, and clean for each test."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from databases import Postgres, reset_statement
from examples.accounts.database import Database, install
from examples.accounts.small_worker import Json, SmallWorker

Row = dict[str, Any]
DATABASE = "accounts_test"
SCHEMAS = ("accounts", "comms", "dutiful", "files", "learning", "queues")
MOST_CHECKS = 100
ROLES = (
    "worker_service_user", "accounts_owner", "dutiful_client", "dutiful_operator", "dutiful_worker", "dutiful_member",
    "dutiful_sql_worker", "dutiful_reader", "dutiful_owner",
)  # fmt: skip


@contextmanager
def installed(server: Postgres) -> Iterator["CleanAccounts"]:
    server.drop_database(DATABASE)
    clean = CleanAccounts(asyncio.run(install(server.create_database(DATABASE))))
    try:
        yield clean
    finally:
        clean.close()
        server.drop_database(DATABASE)
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            for role in ROLES:
                with suppress(
                    psycopg.errors.DependentObjectsStillExist
                ):  # another database of this server uses it, too
                    connection.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


class CleanAccounts:
    """Sets an installed database back to how the installation left it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._connection = psycopg.connect(database.url, autocommit=True)
        self._reset = reset_statement(self._connection, *SCHEMAS)

    def reset(self) -> Database:
        self._connection.execute(self._reset)
        return self.database

    def close(self) -> None:
        self._connection.close()


@contextmanager
def clean_accounts(clean: CleanAccounts) -> Iterator["Accounts"]:
    accounts = Accounts(clean.reset())
    try:
        yield accounts
        assert accounts.ask("select count(*) from dutiful.misplaced") == 0
    finally:
        accounts.close()


class Accounts:
    """One database. `run` and `ask` are a superuser's; a worker has its own login."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.sent: list[tuple[str, Json]] = []  # what the small workers' providers have accepted
        self.broken: set[str] = set()  # channels whose providers fail
        self._connection = psycopg.connect(database.url, autocommit=True, row_factory=dict_row)
        self._workers: list[SmallWorker] = []

    def run(self, statement: str, *args: Any) -> list[Row]:
        cursor = self._connection.execute(statement.encode(), args)
        return cursor.fetchall() if cursor.description else []

    def ask(self, statement: str, *args: Any) -> Any:
        """The one value of the one row."""
        ((value,),) = [row.values() for row in self.run(statement, *args)]
        return value

    def column(self, statement: str, *args: Any) -> list[Any]:
        return [value for (value,) in (row.values() for row in self.run(statement, *args))]

    def rolled_back(self) -> AbstractContextManager[Any]:
        """A transaction that is not committed."""
        return self._connection.transaction(force_rollback=True)

    def make_checks_due(self) -> int:
        """Moves the clock for tasks that wait for their time; returns how many there were."""
        return len(self.run("update dutiful.scheduled set run_at = now() where run_at > now() returning 1"))

    def run_to_the_end(self, worker: SmallWorker) -> None:
        """Runs all tasks, also those that are due later; a process that does not end fails the test."""
        for _ in range(MOST_CHECKS):
            if not worker.run_all() and not self.make_checks_due():
                return
        raise AssertionError(f"checks follow even after {MOST_CHECKS} rounds")

    def wait_for_a_lock(self) -> None:
        """Returns when some statement waits for a lock."""
        here = "select count(*) from pg_stat_activity where datname = current_database()"
        for _ in range(3_000):
            if self.ask(f"{here} and wait_event_type = 'Lock'"):
                return
            self.run("select pg_sleep(0.01)")
        raise AssertionError("no statement waits for a lock")

    def worker(self, **providers: Any) -> SmallWorker:
        given = {name: self._provider(name) for name in ("email", "sms", "file_delete")} | providers
        worker = SmallWorker(self.database.worker_url, given)
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._connection.close()

    def new_account(self, *, bucket: str = "recordings", files: int = 2) -> int:
        """An account with a profile, a cue, and finished uploads."""
        account: int = self.ask(
            "insert into accounts.account (email_address, phone_number) values ('ada@example.org', '+358401234567')"
            " returning account_id"
        )
        profile = self.ask(
            "insert into accounts.profile (account_id, display_name) values (%s, 'Ada') returning profile_id", account
        )
        cue = self.ask("insert into learning.cue (prompt) values ('Say hello') returning cue_id")
        for n in range(files):
            intent = self.ask(
                "insert into files.upload_intent (account_id, bucket, object_key) values (%s, %s, %s)"
                " returning upload_intent_id", account, bucket, f"account-{account}/take {n}.ogg",
            )  # fmt: skip
            file = self.ask('select files.finish_upload(%s, \'{"type": "audio/ogg"}\')', intent)
            self.run("insert into learning.profile_cue_recording values (%s, %s, %s)", profile, cue, file)
        return account

    def new_email(self, address: str = "ada@example.org") -> int:
        statement = (
            "insert into comms.email_message (to_address, subject, body) values (%s, 'Hello', 'Hello!')"
            " returning email_message_id"
        )
        found: int = self.ask(statement, address)
        return found

    def _provider(self, channel: str) -> Any:
        def provide(request: Json) -> Json:
            if channel in self.broken:
                raise ConnectionError("the provider is down")
            self.sent.append((channel, request))
            return {"accepted": True}

        return provide
