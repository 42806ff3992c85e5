"""What a handler works with: the firm whose job it is, that firm's queue, and the way to the world outside."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from dutiful import Context, Fail
from examples.practice.firms import Firm, Firms, Row
from examples.practice.queue import JobQueue


class NotThere(Fail):
    """What the job is about is not there, and will not come by waiting."""


@dataclass(frozen=True)
class Addresses:
    mail: str  # where messages are fetched
    calendars: str
    smtp_port: int  # on this machine


@dataclass(frozen=True)
class Desk:
    """One job's place in the office."""

    firm: Firm
    queue: JobQueue
    correlation_id: str

    def get(self, statement: str, /, **params: Any) -> Row:
        """The row that the job is about."""
        row = self.firm.one(statement, **params)
        if row is None:
            raise NotThere(f"firm {self.firm.id} has no such {statement}: {params}")
        return row

    async def follow_up(self, job_type: str, key: str, **refs: Any) -> bool:
        return await self.queue.follow_up(job_type, self.correlation_id, key, **refs)


@dataclass(frozen=True)
class Office:
    firms: Firms
    addresses: Addresses
    http: httpx2.AsyncClient
    queue_of: Callable[[int], JobQueue]

    def desk(self, ctx: Context) -> Desk:
        assert ctx.tenant is not None, "the rules of every category ask for a tenant"
        firm_id = int(ctx.tenant)
        return Desk(self.firms.firm(firm_id), self.queue_of(firm_id), ctx.correlation_id)
