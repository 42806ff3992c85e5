"""Releases that meet on one database: what each applies, and which of them may work with it."""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import pytest

from databases import Postgres
from dutiful import SchemaMismatch, StoreUnavailable
from dutiful.stores.postgres import PostgresStore, migrations, schema_files
from dutiful.stores.postgres.migrations import OLDEST_VERSION, SCHEMA_VERSION
from dutiful.stores.postgres.schema_files import SchemaFile, in_order
from suite.builders import new_job

# All that a schema is made of, without the numbers that the server gives its objects.
CATALOG = """
    select 'relation', c.relname, c.relkind::text, c.reloptions::text, c.relacl::text from pg_class c
    where c.relnamespace = 'dutiful'::regnamespace and c.relkind in ('r', 'v', 'S', 'c')
    union all
    select 'column', c.relname, a.attnum::text || ' ' || a.attname,
           format_type(a.atttypid, a.atttypmod) || ' ' || a.attcollation::regcollation || ' ' || a.attnotnull,
           pg_get_expr(d.adbin, d.adrelid)
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    where c.relnamespace = 'dutiful'::regnamespace and c.relkind in ('r', 'v', 'c')
    union all
    select 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), null
    from pg_constraint where connamespace = 'dutiful'::regnamespace
    union all
    select 'index', tablename, indexname, indexdef, null from pg_indexes where schemaname = 'dutiful'
    union all
    select 'function', p.oid::regprocedure::text, pg_get_functiondef(p.oid), p.proacl::text, null
    from pg_proc p where p.pronamespace = 'dutiful'::regnamespace
    union all
    select 'view', viewname, definition, null, null from pg_views where schemaname = 'dutiful'
    union all
    select 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), null
    from pg_trigger where not tgisinternal
    union all
    select 'applied', name, checksum, null, null from dutiful.migration
    union all
    select 'meta', key, value, null, null from dutiful.meta
    order by 1, 2, 3, 4, 5
"""


def run(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def empty_url(postgres18: Postgres) -> Iterator[str]:
    """A database without a schema of ours."""
    postgres18.drop_database("empty_test")
    yield postgres18.create_database("empty_test")
    postgres18.drop_database("empty_test")


@pytest.fixture
def isolated_url(postgres18: Postgres, empty_url: str) -> Iterator[str]:
    """A database whose tenants are kept apart; the groups of that belong to the server."""
    store = PostgresStore(empty_url, schema="isolated")
    asyncio.run(store.migrate())
    run(empty_url, store.tenants.sql())
    yield empty_url
    postgres18.drop_database("empty_test")
    run(postgres18.dsn(), "drop role isolated_operator, isolated_worker, isolated_member")


@pytest.fixture
def migrated_url(empty_url: str) -> str:
    asyncio.run(PostgresStore(empty_url).migrate())
    return empty_url


def release(monkeypatch: pytest.MonkeyPatch, *, version: int = SCHEMA_VERSION, **changed: str) -> None:
    """Act as a release with these files of functions instead of ours, and those besides that we don't have."""
    texts = {file.name.removeprefix("functions/"): file.sql for file in schema_files.functions()}
    files = in_order({**texts, **changed})
    monkeypatch.setattr(migrations, "functions", lambda: files)
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", version)


def text_of(name: str) -> str:
    return next(file.sql for file in schema_files.functions() if file.name == f"functions/{name}")


ANSWER = "create or replace function {schema}.answer() returns int language sql immutable as $$ select 42 $$;\n"
OTHER_ANSWER = ANSWER.replace("42", "54")


def answer(url: str) -> object:
    return run(url, "select dutiful.answer()")[0][0]


async def with_newer_schema(url: str, *, version: int, oldest: int) -> None:
    connection = await asyncpg.connect(url)
    put = "update dutiful.meta set value = $2 where key = $1"
    await connection.executemany(put, [("schema_version", str(version)), ("oldest_version", str(oldest))])
    await connection.close()


async def versions(url: str) -> dict[str, int]:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("select key, value::int from dutiful.meta where key like '%version'")
    await connection.close()
    return {row["key"]: row["value"] for row in rows}


def test_every_migration_has_a_number_and_a_topic_of_its_own() -> None:
    names = [file.name.split("_", 1) for file in schema_files.migrations()]
    numbers = [int(number) for number, _ in names]

    assert numbers == sorted(set(numbers)) and numbers[0] == 1
    assert numbers[-1] <= SCHEMA_VERSION, "a migration has the number of the release that brings it"
    assert len({topic for _, topic in names}) == len(names)


def test_every_file_of_functions_says_what_it_needs(empty_url: str) -> None:
    tables = "".join(file.sql for file in schema_files.migrations())
    files = {file.name.removeprefix("functions/"): file for file in schema_files.functions()}
    with psycopg.connect(empty_url) as connection:
        connection.execute(migrations.render("create schema {schema};\n" + tables, "part").encode())
        for name in files:
            below = "".join(sql for _, sql in needed(name, files))
            with connection.transaction(force_rollback=True):
                connection.execute(migrations.render(below, "part").encode())


def needed(name: str, files: dict[str, SchemaFile]) -> list[tuple[str, str]]:
    texts = {other: file.sql for other, file in files.items()}
    below = {name}
    while more := {need for other in below for need in schema_files.needs(other, texts)} - below:
        below |= more
    return [(other, file.sql) for other, file in files.items() if other in below]


def test_files_that_need_each_other_or_nothing_known_are_refused() -> None:
    with pytest.raises(LookupError, match="need each other"):
        in_order({"a": "-- needs: b\n", "b": "-- needs: a\n"})
    with pytest.raises(LookupError, match=r"a\.sql needs what there is no file of: c, d"):
        in_order({"a": "-- needs: d, b, c\n", "b": ""})


async def test_the_script_makes_what_migrate_makes(empty_url: str) -> None:
    store = PostgresStore(empty_url)
    applied = await store.migrate()
    migrated = run(empty_url, CATALOG)
    run(empty_url, "drop schema dutiful cascade")

    run(empty_url, store.migration_sql())

    assert run(empty_url, CATALOG) == migrated
    assert "0001_tables" in applied and "functions/jobs" in applied
    assert await store.migrate() == [], "what the script did is on record"
    run(empty_url, store.migration_sql())
    assert run(empty_url, CATALOG) == migrated, "it can be run again"


async def test_two_that_migrate_at_once_both_succeed(empty_url: str) -> None:
    both = await asyncio.gather(PostgresStore(empty_url).migrate(), PostgresStore(empty_url).migrate())

    assert sorted(map(len, both)) == [0, len(schema_files.migrations()) + len(schema_files.functions())]


async def test_a_function_is_applied_when_it_has_changed_and_with_it_what_needs_it(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(migrated_url)
    double = (
        "-- needs: answer\ncreate or replace view {schema}.double as select 2 * {schema}.answer() as answer;\n"
        "create or replace view {schema}.four_times as select 2 * answer as answer from {schema}.double;\n"
    )

    release(monkeypatch, answer=ANSWER, double=double)
    assert await store.migrate() == ["functions/answer", "functions/double"]
    assert await store.migrate() == []
    # `create or replace` cannot change what a function returns; so this release drops it, and with it the views.
    wider = "drop function if exists {schema}.answer() cascade;\n" + OTHER_ANSWER.replace(" int ", " bigint ")
    release(monkeypatch, answer=wider, double=double)
    assert await store.migrate() == ["functions/answer", "functions/double"]

    assert run(migrated_url, "select answer from dutiful.four_times") == [(216,)]


async def test_an_older_release_does_not_put_its_functions_back(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(migrated_url)
    release(monkeypatch, version=SCHEMA_VERSION + 1, answer=ANSWER)
    await store.migrate()

    release(monkeypatch, answer=OTHER_ANSWER)
    assert await store.migrate() == []
    with pytest.raises(psycopg.Error, match="made by a newer release than this script"):
        run(migrated_url, store.migration_sql())

    assert answer(migrated_url) == 42
    assert (await versions(migrated_url))["schema_version"] == SCHEMA_VERSION + 1


async def test_a_migration_that_fails_leaves_everything_as_it_was(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(migrated_url, CATALOG)
    release(monkeypatch, answer=ANSWER, broken="-- needs: answer\nselect 1 / 0;\n")

    with pytest.raises(Exception, match="division by zero"):
        await PostgresStore(migrated_url).migrate()

    assert run(migrated_url, CATALOG) == before


async def test_a_view_can_get_a_column_in_its_middle_and_keeps_its_rights_and_what_returns_it(
    isolated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = "select relacl, reloptions from pg_class where oid = 'isolated.jobs'::regclass"
    before = run(isolated_url, rights)
    text = text_of("views").replace("select j.id, j.kind", "select j.id, 7 as lucky, j.kind", 1)
    release(monkeypatch, views="drop view if exists {schema}.jobs cascade;\n" + text)

    assert await PostgresStore(isolated_url, schema="isolated").migrate() == ["functions/views", "functions/queries"]

    assert run(isolated_url, rights) == before
    assert run(isolated_url, "select lucky from isolated.job_records(array[]::uuid[])") == []


async def test_a_migration_that_drops_a_view_has_it_made_again(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = (
        "drop view {schema}.breaker_status;\nalter table {schema}.breaker alter trips type numeric;\n"
        "delete from {schema}.migration where name = 'functions/views';\n"
    )
    known = schema_files.migrations()
    monkeypatch.setattr(migrations, "migrations", lambda: [*known, SchemaFile("0002_trips", drop)])

    assert await PostgresStore(migrated_url).migrate() == ["0002_trips", "functions/views"]

    assert run(migrated_url, "select trips from dutiful.breaker_status") == []


async def test_a_database_says_which_releases_may_work_with_it(pg18_url: str) -> None:
    assert await versions(pg18_url) == {"schema_version": SCHEMA_VERSION, "oldest_version": OLDEST_VERSION}
    assert OLDEST_VERSION <= SCHEMA_VERSION, "or this release would shut itself out"


async def test_a_newer_schema_that_this_release_can_use_is_used_and_not_taken_back(pg18_url: str) -> None:
    await with_newer_schema(pg18_url, version=SCHEMA_VERSION + 5, oldest=SCHEMA_VERSION)

    store = PostgresStore(pg18_url)
    assert await store.migrate() == []
    await store.open()
    try:
        assert len(await store.jobs.insert([new_job()])) == 1
    finally:
        await store.close()
    assert await versions(pg18_url) == {"schema_version": SCHEMA_VERSION + 5, "oldest_version": SCHEMA_VERSION}


async def test_a_newer_schema_that_leaves_this_release_behind_is_refused(pg18_url: str) -> None:
    await with_newer_schema(pg18_url, version=SCHEMA_VERSION + 5, oldest=SCHEMA_VERSION + 1)

    with pytest.raises(SchemaMismatch, match=rf"asks for at least {SCHEMA_VERSION + 1}\); upgrade dutiful"):
        await PostgresStore(pg18_url).open()


@pytest.fixture
def stranger(postgres18: Postgres, empty_url: str) -> Iterator["psycopg.Connection[tuple[int]]"]:
    """A session of a role that may only connect."""
    run(empty_url, "drop role if exists stranger; create role stranger login password 'strange'")
    url = urlunsplit(
        urlsplit(empty_url)._replace(netloc=f"stranger:strange@{urlsplit(empty_url).netloc.rpartition('@')[2]}")
    )
    with psycopg.connect(url, autocommit=True, application_name="psql") as connection:
        yield connection
    run(postgres18.dsn(), "drop role stranger")


async def test_migrate_does_not_wait_for_ever_and_says_who_holds_the_lock(
    empty_url: str, stranger: "psycopg.Connection[tuple[int]]", caplog: pytest.LogCaptureFixture
) -> None:
    stranger.execute("select pg_advisory_lock(hashtext('dutiful migrate dutiful'))")
    began = time.monotonic()

    with pytest.raises(StoreUnavailable) as refused:
        await PostgresStore(empty_url).migrate(wait=timedelta(seconds=3))

    assert 2 < time.monotonic() - began < 15
    pid = stranger.info.backend_pid
    for part in (
        "not migrated",
        f"process {pid} (role stranger, application psql",
        f"pg_terminate_backend({pid})",
        "--wait",
    ):
        assert part in str(refused.value)
    assert f"process {pid}" in caplog.text  # already while it waits
    stranger.execute("select pg_advisory_unlock_all()")
    assert await PostgresStore(empty_url).migrate(wait=timedelta(seconds=3))


async def test_migrate_says_who_locks_a_table(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = schema_files.migrations()
    wider = SchemaFile("0002_wider", "alter table {schema}.breaker alter trips type bigint;\n")
    monkeypatch.setattr(migrations, "migrations", lambda: [*known, wider])
    with psycopg.connect(migrated_url, application_name="report") as reader:
        reader.execute("select count(*) from dutiful.breaker")

        with pytest.raises(
            StoreUnavailable, match=rf"process {reader.info.backend_pid} \(role .*, application report, .*idle in"
        ):
            await PostgresStore(migrated_url).migrate(wait=timedelta(seconds=1))


async def test_the_script_and_tenants_on_give_up_on_a_locked_table(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "_SCRIPT_PATIENCE", "200ms")
    store = PostgresStore(migrated_url)
    await store.open()
    with psycopg.connect(migrated_url, application_name="report") as reader:
        reader.execute("select count(*) from dutiful.job")
        with pytest.raises(StoreUnavailable, match=f"process {reader.info.backend_pid} "):
            await store.tenants.enable()
    with psycopg.connect(migrated_url) as locker:
        locker.execute("lock table dutiful.migration in access exclusive mode")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            run(migrated_url, store.migration_sql())
    await store.close()
