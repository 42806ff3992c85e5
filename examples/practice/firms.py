"""What the firms own: rows in the platform's database, and files beside it."""

import sqlite3
import threading
from pathlib import Path
from typing import Any

from examples.statements import load

HERE = Path(__file__).parent
# The tables to export and to delete from, in the order of their references. Exports stay, as a receipt.
TABLES = (
    "inbox",
    "notifications",
    "sessions",
    "documents",
    "executions",
    "works",
    "periods",
    "engagements",
    "appointments",
    "messages",
    "clients",
    "connections",
    "calendars",
    "users",
)
Row = dict[str, Any]
STATEMENTS = load(HERE / "statements.sql")


class Firms:
    """All firms, in one SQLite file; handlers on the event loop and in threads run one statement at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = threading.Lock()
        self._database = sqlite3.connect(folder / "practice.db", isolation_level=None, check_same_thread=False)
        self._database.row_factory = sqlite3.Row
        self._database.executescript((HERE / "schema.sql").read_text())

    def firm(self, firm_id: int) -> "Firm":
        return Firm(self, firm_id)

    def user(self, name: str) -> Row | None:
        """The one who signs in by this name; names are unique on the whole platform."""
        rows, _ = self.execute(STATEMENTS["user"], {"name": name})
        return rows[0] if rows else None

    def execute(self, statement: str, params: Row) -> tuple[list[Row], int | None]:
        """Returns the rows, and the id of the row that was inserted last."""
        with self._lock:
            cursor = self._database.execute(statement, params)
            return [dict(row) for row in cursor.fetchall()], cursor.lastrowid

    def execute_all(self, statements: list[str], params: Row) -> None:
        """All or none."""
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for statement in statements:
                self._database.execute(statement, params)

    def close(self) -> None:
        self._database.close()


class Firm:
    """One firm, without access to rows and files of others."""

    def __init__(self, firms: Firms, firm_id: int) -> None:
        self.id = firm_id
        self.folder = firms.folder / f"firm-{firm_id}"
        self.folder.mkdir(exist_ok=True)
        self._firms = firms

    def all(self, statement: str, /, **params: Any) -> list[Row]:
        return self._run(statement, params)[0]

    def one(self, statement: str, /, **params: Any) -> Row | None:
        rows = self.all(statement, **params)
        return rows[0] if rows else None

    def add(self, statement: str, /, **params: Any) -> int:
        """The new row's id."""
        return self._run(statement, params)[1] or 0

    def run(self, statement: str, /, **params: Any) -> None:
        self._run(statement, params)

    def dump(self) -> dict[str, list[Row]]:
        """Every row that it owns, by table."""
        return {
            table: self._firms.execute(f"SELECT * FROM {table} WHERE firm_id = :firm", self._key)[0] for table in TABLES
        }

    def purge(self) -> None:
        """Delete every row that it owns."""
        self._firms.execute_all([f"DELETE FROM {table} WHERE firm_id = :firm" for table in TABLES], self._key)

    def _run(self, name: str, params: Row) -> tuple[list[Row], int | None]:
        return self._firms.execute(STATEMENTS[name], {**params, **self._key})

    @property
    def _key(self) -> Row:
        return {"firm": self.id}
