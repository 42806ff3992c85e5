"""What handlers use: the firm of their job, its queue, and external services."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from dutiful import Context, Fail
from examples.practice.firms import Firm, Firms, Row
from examples.practice.queue import JobQueue

PORT, SMTP_PORT = 8091, 2526  # of mail and calendars, and of SMTP, unless the environment says otherwise


class NotThere(Fail):
    """The object of the job does not exist."""


@dataclass(frozen=True)
class Addresses:
    mail: str  # to fetch messages from
    calendars: str
    smtp_port: int  # on this machine

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Addresses":
        services = environ.get("PRACTICE_SERVICES", f"http://127.0.0.1:{PORT}")
        return cls.at(services, int(environ.get("PRACTICE_SMTP_PORT", SMTP_PORT)))

    @classmethod
    def at(cls, services: str, smtp_port: int) -> "Addresses":
        return cls(f"{services}/mail", f"{services}/calendars", smtp_port)


@dataclass(frozen=True)
class FirmScope:
    """The firm and the correlation id of one job."""

    firm: Firm
    queue: JobQueue
    correlation_id: str

    def get(self, statement: str, /, **params: Any) -> Row:
        """The row of the job's object."""
        row = self.firm.one(statement, **params)
        if row is None:
            raise NotThere(f"firm {self.firm.id} has no such {statement}: {params}")
        return row

    async def follow_up(self, job_type: str, key: str, **refs: Any) -> bool:
        return await self.queue.follow_up(job_type, self.correlation_id, key, **refs)


@dataclass(frozen=True)
class Platform:
    firms: Firms
    addresses: Addresses
    http: httpx2.AsyncClient
    queue_of: Callable[[int], JobQueue]

    def scope(self, ctx: Context) -> FirmScope:
        assert ctx.tenant is not None, "the rules of every category require a tenant"
        firm_id = int(ctx.tenant)
        return FirmScope(self.firms.firm(firm_id), self.queue_of(firm_id), ctx.correlation_id)
