"""Sealed values in Postgres, for rotation."""

from collections.abc import Sequence

from dutiful.store.encryption import TABLES, Key, SealedPage, SealedPlace, SealedRow, places
from dutiful.stores.postgres.engine.subject import Subject

_TYPES = {"name": "text", "seq": "bigint"}


class PostgresEncryption(Subject):
    places = places(TABLES)

    async def page(self, place: SealedPlace, after: Key | None, size: int) -> SealedPage:
        casts = [f"($2::text[])[{at}]::{_type(place, name)}" for at, name in enumerate(place.key, 1)]
        condition = "true" if after is None else f"({', '.join(place.key)}) > ({', '.join(casts)})"
        statement = self._statement("sealed_page", place).replace("{after}", condition)
        rows = await self._db.fetch(statement, size, *([] if after is None else [list(after)]))
        if not rows:
            return SealedPage([], None)
        # The last row of a page is always there, because the next page begins after it.
        found = [SealedRow(tuple(row["key"]), row["value"]) for row in rows if "$sealed" in (row["value"] or "")]
        last = rows[-1]
        return SealedPage(found, tuple(last["key"]) if last["total"] == size else None)

    async def replace(self, place: SealedPlace, changes: Sequence[tuple[SealedRow, str]]) -> int:
        keys = [row.key for row, _ in changes]
        second = [key[1] if len(key) > 1 else "" for key in keys]
        olds, news = [row.value for row, _ in changes], [new for _, new in changes]
        statement = self._statement("replace_sealed", place)
        return len(await self._db.fetch(statement, [key[0] for key in keys], second, olds, news))

    def _statement(self, name: str, place: SealedPlace) -> str:
        parts = zip(place.key, ("first", "second"), strict=False)
        same = " and ".join(f"t.{column} = n.{part}::{_type(place, column)}" for column, part in parts)
        filled = {
            "{table}": place.table,
            "{column}": place.column,
            "{keys}": ", ".join(place.key),
            "{keys as text}": ", ".join(f"p.{column}::text" for column in place.key),
            "{same}": same,
            "{type}": "text" if place.is_text else "jsonb",
        }
        statement: str = self._sql[name]
        for part, text in filled.items():
            statement = statement.replace(part, text)
        return statement


def _type(place: SealedPlace, column: str) -> str:
    return "bigint" if (place.table, column) == ("attempt", "id") else _TYPES.get(column, "uuid")
