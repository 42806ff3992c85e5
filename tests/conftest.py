"""Fixtures with real servers: started once a session, with a clean, migrated database for each test.

A server that is missing is a failure in CI and a skip elsewhere. The reset deletes rows instead of creating databases:
2 ms against 100 ms or more.
"""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, settings

from databases import DATABASE, CleanDatabase, GivenPostgres, Postgres, missing
from dutiful import Dutiful
from dutiful.operator import fleet
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.sqlite import SqliteStore
from servers import PgBouncer, PostgresServer, RedisServer, database_url, memory_folder, redis_url

pytest.register_assert_rewrite("suite")
# A shell ignores INT in what a script starts with `&`, and nohup ignores HUP. A child process inherits an ignored
# signal but not a handler: one that does nothing keeps the signal ignored here, and children have the default.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
# A slow machine must not fail a property test.
settings.register_profile("no deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no deadline")


def _postgres(version: int) -> Iterator[Postgres]:
    if url := database_url(version):
        yield GivenPostgres(url)
        return
    if reason := PostgresServer.available(version):
        missing(reason)
    settings = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}
    with PostgresServer(version, settings, memory_folder()) as server:
        yield server


def _cleaned(server: Postgres) -> Iterator[CleanDatabase]:
    database = CleanDatabase(server)
    yield database
    database.close()
    server.drop_database(DATABASE)


@pytest.fixture(scope="session")
def postgres18() -> Iterator[Postgres]:
    yield from _postgres(18)


@pytest.fixture(scope="session")
def postgres16() -> Iterator[Postgres]:
    yield from _postgres(16)


@pytest.fixture
def own_server(postgres18: Postgres) -> Iterator[PostgresServer]:
    """A server to stop or crash, which is durable as in production."""
    if reason := PostgresServer.available(18):
        pytest.skip(f"the server that the environment offers is not ours to stop, and {reason}")
    with PostgresServer(18, folder=memory_folder()) as server:
        yield server


@pytest.fixture
async def own_store(own_server: PostgresServer) -> AsyncIterator[Store]:
    store = PostgresStore(own_server.create_database("dutiful"))
    await store.migrate()
    await store.open()
    yield store
    await store.close()


@pytest.fixture(scope="session")
def clean18(postgres18: Postgres) -> Iterator[CleanDatabase]:
    yield from _cleaned(postgres18)


@pytest.fixture(scope="session")
def clean16(postgres16: Postgres) -> Iterator[CleanDatabase]:
    yield from _cleaned(postgres16)


@pytest.fixture
def pg18_url(clean18: CleanDatabase) -> str:
    """A migrated, empty database on Postgres 18; tests that change the schema create their own on `postgres18`."""
    return clean18.reset()


@pytest.fixture
def pg16_url(clean16: CleanDatabase) -> str:
    return clean16.reset()


@pytest.fixture(scope="session")
def bouncer(postgres18: Postgres) -> Iterator[PgBouncer]:
    if not isinstance(postgres18, PostgresServer):
        missing("PgBouncer is tested in front of a bundled server only: unset DUTIFUL_TEST_PG18_URL")
    if reason := PgBouncer.available():
        missing(reason)
    with PgBouncer(postgres18) as server:
        yield server


@pytest.fixture
def pgbouncer(bouncer: PgBouncer, pg18_url: str) -> str:
    """The URL of `pg18_url`'s database through PgBouncer in transaction mode."""
    return bouncer.dsn(DATABASE)


@pytest.fixture(scope="session")
def redis_server(worker_id: str) -> Iterator[str]:
    """The URL of a Redis database that no test stops."""
    if url := redis_url():
        yield f"{url.rstrip('/')}/{worker_id.removeprefix('gw') if worker_id != 'master' else 0}"
        return
    if reason := RedisServer.available():
        missing(reason)
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def empty_redis(redis_server: str) -> str:
    """The URL of an empty Redis."""
    with redis.Redis.from_url(redis_server) as client:
        client.flushdb()
    return redis_server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis server to stop."""
    if reason := RedisServer.available():
        missing(reason)
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    parent = memory_folder() or tmp_path_factory.getbasetemp()
    with tempfile.TemporaryDirectory(prefix="dutiful-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def sqlite_path(sqlite_folder: Path) -> Iterator[Path]:
    """A path without a file; the first store that opens it makes the schema."""
    with tempfile.TemporaryDirectory(dir=sqlite_folder, ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "dutiful.db"


@pytest.fixture(scope="session")
def sqlite_template(sqlite_folder: Path) -> Path:
    path = sqlite_folder / "template.db"
    asyncio.run(SqliteStore(path).migrate())
    return path


@pytest.fixture
def migrated_path(sqlite_path: Path, sqlite_template: Path) -> Path:
    """`sqlite_path` with an empty database: a copy, because to migrate costs many times as much."""
    return Path(shutil.copyfile(sqlite_template, sqlite_path))


@pytest.fixture(params=["sqlite", "postgres18"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def closed_store(backend: str, request: pytest.FixtureRequest) -> Store:
    match backend:
        case "sqlite":
            return SqliteStore(request.getfixturevalue("migrated_path"))
        case "postgres18":
            return PostgresStore(request.getfixturevalue("pg18_url"))
        case _:
            return PostgresStore(request.getfixturevalue("pg16_url"))


@pytest.fixture
async def store(closed_store: Store) -> AsyncIterator[Store]:
    """An open, empty store; a test that takes it runs on both backends."""
    await closed_store.open()
    yield closed_store
    await closed_store.close()


@pytest.fixture(params=["sqlite", "postgres18"])
def app_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, by default on both backends ("pgbouncer" is the third)."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{request.getfixturevalue('migrated_path')}"
        case "postgres18":
            return str(request.getfixturevalue("pg18_url"))
        case name:
            return str(request.getfixturevalue(name))


@pytest.fixture
async def app(app_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Dutiful]:
    """An app without kinds, opened when first used; after the test its storage must be consistent."""
    # LISTEN does not work through PgBouncer, so workers poll there.
    app = Dutiful(app_url, poll="100ms" if "pgbouncer" in request.node.name else None)
    yield app
    async with app:
        assert await (await app.client()).store.queries.check_places() == []
    app.close_sync()


@pytest.fixture
def soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker claims while a pause comes, so only running jobs keep a drain from being safe."""
    monkeypatch.setattr(fleet, "IN_FLIGHT", timedelta(0))
    monkeypatch.setattr(fleet, "POLL", 0.02)
