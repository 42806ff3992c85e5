"""The transaction in which a handler writes something of its own and completes its job."""

from typing import Any

from dutiful.core.payload import encode
from dutiful.working import Transaction


class Result:
    """Read when the handler's block has ended; until then it may be set."""

    def __init__(self, limit: int) -> None:
        self.value: Any = None
        self._limit = limit

    def text(self) -> str | None:
        return text_of(self.value, self._limit)


class OwnTransaction:
    """Implements dutiful.context.JobTransaction."""

    def __init__(self, inner: Transaction, result: Result) -> None:
        self._inner = inner
        self._result = result

    async def execute(self, statement: str, *args: Any) -> None:
        await self._inner.execute(statement, *args)

    @property
    def connection(self) -> Any:
        return self._inner.connection

    def complete(self, result: Any) -> None:
        self._result.value = result


def text_of(result: Any, limit: int) -> str | None:
    return None if result is None else encode(result, what="result", limit=limit)
