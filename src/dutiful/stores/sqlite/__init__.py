"""Jobs in one SQLite file."""

from dutiful.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
