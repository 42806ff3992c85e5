"""Jobs in Postgres: a fleet of workers on the database you already run."""

from dutiful.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
