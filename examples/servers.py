"""Servers that examples start when they are given none: those of the tests, which are deleted at the end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from servers import PostgresServer, RedisServer


@contextmanager
def own_server() -> Iterator[str]:
    """Starts a Postgres; yields its superuser's URL."""
    with PostgresServer(18, {"fsync": "off"}) as server:
        yield server.dsn()


@contextmanager
def own_redis() -> Iterator[str]:
    """Starts a Redis, which keeps nothing when it ends; yields its URL."""
    with RedisServer() as server:
        yield server.url
