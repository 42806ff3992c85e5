"""Sessions that work by the published SQL functions."""

from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from suite.builders import KIND

Row = dict[str, Any]


class Session:
    """A session of psql's kind: one statement, one transaction."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def ask(self, call: str, *args: Any) -> Any:
        """The value of one function."""
        (row,) = self.rows(f"select dutiful.{call} as answer", *args)
        return row["answer"]

    def rows(self, statement: str, *args: Any) -> list[Row]:
        return self.connection.execute(statement, args).fetchall()

    def enqueue(self, kind: str = KIND, **options: Any) -> UUID:
        named = "".join(f", p_{name} => %s" for name in options)
        found: UUID = self.ask(f"enqueue(%s{named})", kind, *options.values())
        return found

    def dequeue(self, *kinds: str, **options: Any) -> list[Row]:
        named = "".join(f", p_{name} => %s" for name in options)
        return self.rows(f"select * from dutiful.dequeue(%s{named})", list(kinds or [KIND]), *options.values())

    def dequeue_one(self, *kinds: str, **options: Any) -> Row:
        (row,) = self.dequeue(*kinds, **options)
        return row

    def next_job(self, *kinds: str, **options: Any) -> UUID | None:
        """The id of the job that one dequeue claims."""
        rows = self.dequeue(*kinds, **options)
        return rows[0]["job_id"] if rows else None

    def look_up(self, job_id: UUID) -> Row:
        (row,) = self.rows("select * from dutiful.look_up_job(%s)", job_id)
        return row
