"""Runs one statement on the user's own connection, of any supported driver, inside its open transaction."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from dutiful.core.errors import UsageError

ACCEPTED = (
    "an asyncpg connection, a psycopg 3 connection, a SQLAlchemy connection or session (each sync or async), "
    "or a Django connection, to the Postgres database that the app uses"
)


# The codes for a missing schema, function and table.
_NO_SUCH_JOB = "23503"
_MISSING = ("3F000", "42883", "42P01")


async def fetch(connection: Any, statement: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Runs `statement` (with $1, $2, …) on an async connection or session."""
    with _translated():
        return await _fetch(connection, statement, args)


def fetch_sync(connection: Any, statement: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Runs `statement` on a blocking connection, session or Django connection."""
    with _translated():
        return _fetch_sync(connection, statement, args)


async def _fetch(connection: Any, statement: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
    match _driver(connection):
        case "asyncpg":
            return [tuple(row) for row in await connection.fetch(statement, *args)]
        case "psycopg-async":
            cursor = await connection.execute(*_percent(statement, args))
            return list(await cursor.fetchall())
        case "sqlalchemy-async":
            _refuse_other_dialect(connection)
            result = await connection.execute(*_colon(statement, args))
            return [tuple(row) for row in result.fetchall()]
        case "psycopg-sync" | "sqlalchemy-sync" | "django":
            raise UsageError(
                f"{_name(connection)} is a blocking connection: use the `.sync` form, as in "
                "send_email.sync.options(within=connection).enqueue(…)"
            )
        case _:
            raise UsageError(f"within= got {_name(connection)}; give {ACCEPTED}")


def _fetch_sync(connection: Any, statement: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
    match _driver(connection):
        case "psycopg-sync":
            return list(connection.execute(*_percent(statement, args)).fetchall())
        case "sqlalchemy-sync":
            _refuse_other_dialect(connection)
            return [tuple(row) for row in connection.execute(*_colon(statement, args)).fetchall()]
        case "django":
            if connection.vendor != "postgresql":
                raise UsageError(f"within= got a Django connection to {connection.vendor}; give {ACCEPTED}")
            with connection.cursor() as cursor:
                cursor.execute(*_percent(statement, args))
                return list(cursor.fetchall())
        case "asyncpg" | "psycopg-async" | "sqlalchemy-async":
            raise UsageError(
                f"{_name(connection)} is an async connection: await the plain form, as in "
                "await send_email.options(within=connection).enqueue(…)"
            )
        case _:
            raise UsageError(f"within= got {_name(connection)}; give {ACCEPTED}")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        causes = (error, getattr(error, "orig", None), error.__cause__)
        for cause in causes:
            if getattr(cause, "sqlstate", None) == _NO_SUCH_JOB:
                raise UsageError(f"depends_on: {str(cause).splitlines()[0]}") from error
        if any(getattr(cause, "sqlstate", None) in _MISSING for cause in causes):
            raise UsageError(
                f"within= got a connection to a database without Dutiful's tables ({error}); give {ACCEPTED}"
            ) from error
        raise


def _driver(connection: Any) -> str | None:
    """The driver, recognised by class names, so that none has to be installed."""
    names = {f"{c.__module__}.{c.__qualname__}" for c in type(connection).__mro__}
    tops = {name.split(".", 1)[0] for name in names}
    # A pool or an engine has no transaction to join.
    if "asyncpg" in tops and hasattr(connection, "fetch") and not hasattr(connection, "acquire"):
        return "asyncpg"
    if "psycopg.AsyncConnection" in names or "psycopg.connection_async.AsyncConnection" in names:
        return "psycopg-async"
    if "psycopg.Connection" in names or "psycopg.connection.Connection" in names:
        return "psycopg-sync"
    if "sqlalchemy" in tops and hasattr(connection, "execute"):
        is_async = any(name.startswith("sqlalchemy.ext.asyncio") for name in names)
        return "sqlalchemy-async" if is_async else "sqlalchemy-sync"
    if "django" in tops and hasattr(connection, "vendor"):
        return "django"
    if any(name.startswith("django.utils.connection.ConnectionProxy") for name in names):
        return "django"
    return None


def _refuse_other_dialect(connection: Any) -> None:
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    dialect = getattr(bind, "dialect", None)
    if dialect is not None and dialect.name != "postgresql":
        raise UsageError(f"within= got a SQLAlchemy connection to {dialect.name}; give {ACCEPTED}")


def _percent(statement: str, args: Sequence[Any]) -> tuple[str, list[Any]]:
    """Replaces each $n by %s, for psycopg and Django."""
    return _positions(statement, len(args), lambda n: "%s"), [_plain(a) for a in args]


def _colon(statement: str, args: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """Replaces each $n by :an, for SQLAlchemy; casts are spelt out, because it takes `::` for a parameter."""
    import sqlalchemy

    text = _positions(statement, len(args), lambda n: f":a{n}")
    return sqlalchemy.text(text), {f"a{n}": _plain(a) for n, a in enumerate(args, 1)}


def _positions(statement: str, count: int, mark: Any) -> str:
    for n in range(count, 0, -1):
        statement = statement.replace(f"${n}", mark(n))
    return statement


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value


def _name(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"
