"""Access to the SQLite file: driver, threads, codec, columns, schema."""

from dutiful.stores.sqlite.engine.driver import Connection, Row
from dutiful.stores.sqlite.engine.engine import Engine, Subject, browses, reads, writes
from dutiful.stores.sqlite.engine.sql import SQL

__all__ = ["SQL", "Connection", "Engine", "Row", "Subject", "browses", "reads", "writes"]
