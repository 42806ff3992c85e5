"""Sealed values in SQLite, for rotation."""

from collections.abc import Sequence

from dutiful.store.encryption import TABLES, Key, SealedPage, SealedPlace, SealedRow, places
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, browses, writes

_OWN = {("dead_letter_body" if table == "dead_letter" else table): columns for table, columns in TABLES.items()}


class SqliteEncryption(Subject):
    places = places(_OWN)

    @browses
    def page(self, db: Connection, place: SealedPlace, after: Key | None, size: int) -> SealedPage:
        marks = ", ".join("?" for _ in place.key)
        condition = "1" if after is None else f"({', '.join(place.key)}) > ({marks})"
        rows = db.rows(_statement("sealed_page", place).replace("{after}", condition), (*(after or ()), size))
        found = [SealedRow(tuple(row[:-1]), row[-1]) for row in rows if row[-1] is not None]
        return SealedPage(found, tuple(rows[-1][:-1]) if len(rows) == size else None)

    @writes
    def replace(self, db: Connection, place: SealedPlace, changes: Sequence[tuple[SealedRow, str]]) -> int:
        before, statement = db.total_changes, _statement("replace_sealed", place)
        for row, new in changes:
            db.run(statement, (new, *row.key, row.value))
        return db.total_changes - before


def _statement(name: str, place: SealedPlace) -> str:
    statement: str = SQL[name].replace("{table}", f"dutiful_{place.table}").replace("{column}", place.column)
    same = " AND ".join(f"{column} = ?" for column in place.key)
    return statement.replace("{keys}", ", ".join(place.key)).replace("{same}", same)
