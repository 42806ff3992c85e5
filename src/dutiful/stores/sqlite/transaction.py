"""A handler's own writes: collected first, then applied together with its job's completion."""

import re
from typing import Any, NoReturn

from dutiful.core.errors import ClaimLost, UsageError
from dutiful.core.ids import public
from dutiful.core.job import Token
from dutiful.core.settle import Change
from dutiful.core.transitions import State
from dutiful.stores.sqlite import tracking, work
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL
from dutiful.working import Completion, Errors

_COMMENTS = re.compile(r"\A(?:\s|;|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)
_FORBIDDEN = frozenset(
    ("BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE", "ATTACH", "DETACH", "PRAGMA", "VACUUM")
)


class BufferedTransaction:
    """Statements in the order in which they were given; SQLite sees them when the block is left."""

    def __init__(self) -> None:
        self._statements: list[tuple[str, tuple[Any, ...]]] = []
        self._closed = False

    async def execute(self, statement: str, *args: Any) -> None:
        if self._closed:
            raise UsageError("the transaction is over: call execute inside its block")
        word = _COMMENTS.sub("", statement).partition(" ")[0].strip().rstrip(";").upper()
        if word in _FORBIDDEN:
            raise UsageError(f"{word} cannot be used here: the job's transaction is begun and committed for you")
        self._statements.append((statement, args))

    @property
    def connection(self) -> NoReturn:
        raise UsageError(
            "there is no connection here: on SQLite, which has one writer, statements are collected and applied when "
            "the block is left. Use execute(), and read what you need before the block"
        )

    def close(self) -> None:
        self._closed = True

    def apply(self, db: Connection, token: Token, result: str | None, errors: Errors, now: int) -> None:
        """Write everything and complete the job; ClaimLost if it is no longer ours."""
        complete(db, token, result, errors, now)
        for statement, args in self._statements:
            db.run_foreign(statement, args)


def complete(db: Connection, token: Token, result: str | None, errors: Errors, now: int) -> None:
    """Complete one job in the transaction that is open; ClaimLost even if it was completed before.

    For then its writes were committed before, and must not be a second time.
    """
    if not _completed(db, token, result, errors, now):
        raise ClaimLost(
            f"job {public(token.job_id)} is no longer ours: its lease ended or it was settled before, "
            "so nothing of this transaction is kept"
        )
    tracking.complete_phase(db, token.job_id, result, now)


def _completed(db: Connection, token: Token, result: str | None, errors: Errors, now: int) -> bool:
    if not errors:
        # Nobody has looked whether the job names a webhook of its own, so that is looked up.
        return not work.complete(db, [Completion(token.job_id, token.claim_id, result, webhook=True)], now)
    held = db.row(SQL["held"], (token.job_id.bytes, token.claim_id))
    if held is None:
        return False
    change = Change(
        token.job_id, token.claim_id, State.COMPLETED_WITH_ERRORS, "partial", held[0], held[1],
        result=result, errors=tuple(errors),
    )  # fmt: skip
    return not work.settle(db, [change], False, now)
