"""Releases that meet on one database: which of them may work with it is written in the database itself."""

import asyncpg
import pytest

from dutiful import SchemaMismatch
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.postgres.migrations import OLDEST_VERSION, SCHEMA_VERSION, migrations
from dutiful.testing.store_suite.builders import new_job


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


def test_every_migration_has_the_next_number_and_a_topic_of_its_own() -> None:
    names = [migration.name.split("_") for migration in migrations()]

    assert [int(number) for number, *_ in names] == list(range(1, SCHEMA_VERSION + 1))
    assert len({"_".join(topic) for _, *topic in names}) == SCHEMA_VERSION


async def test_a_database_says_which_releases_may_work_with_it(pg18_url: str) -> None:
    assert await versions(pg18_url) == {"schema_version": SCHEMA_VERSION, "oldest_version": OLDEST_VERSION}
    assert OLDEST_VERSION <= SCHEMA_VERSION, "or this release would shut itself out"


async def test_a_newer_schema_that_this_release_can_use_is_used_and_not_taken_back(pg18_url: str) -> None:
    await with_newer_schema(pg18_url, version=SCHEMA_VERSION + 5, oldest=SCHEMA_VERSION)

    store = PostgresStore(pg18_url)
    assert await store.migrate() == []
    await store.open()
    try:
        assert len(await store.insert([new_job()])) == 1
    finally:
        await store.close()
    assert await versions(pg18_url) == {"schema_version": SCHEMA_VERSION + 5, "oldest_version": SCHEMA_VERSION}


async def test_a_newer_schema_that_leaves_this_release_behind_is_refused(pg18_url: str) -> None:
    await with_newer_schema(pg18_url, version=SCHEMA_VERSION + 5, oldest=SCHEMA_VERSION + 1)

    with pytest.raises(SchemaMismatch, match=rf"asks for at least {SCHEMA_VERSION + 1}\); upgrade dutiful"):
        await PostgresStore(pg18_url).open()
