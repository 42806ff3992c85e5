"""Results that jobs get of others when they start: of their own tenant only, and despite a store that is away."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest
from running_workers import running

from dutiful import PREVIOUS, Dutiful, JobFailed, JobRecord, Retry, StoreUnavailable, chain
from dutiful.client.client import Client
from dutiful.options import Options

pytestmark = pytest.mark.req("L101")
ONCE = Retry(max_attempts=1)


class AwayOnce:
    """A store whose first read of outcomes fails."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return self if name == "queries" else getattr(self._store, name, None) or getattr(self._store.queries, name)

    async def outcomes(self, job_ids: Sequence[UUID]) -> list[JobRecord]:
        self.reads += 1
        if self.reads == 1:
            raise StoreUnavailable("the store is away")
        found: list[JobRecord] = await self._store.queries.outcomes(job_ids)
        return found


async def test_a_job_whose_parents_cannot_be_read_has_not_used_an_attempt(app: Dutiful) -> None:
    @app.job
    async def one() -> int:
        return 1

    @app.job(retry=ONCE)
    async def double(number: int) -> int:
        return number * 2

    async with app.opened() as client:
        store = AwayOnce(client.store)
        async with running(app, Client(store, client.delivery)):
            flow = await chain(one.call(), double.call(PREVIOUS)).enqueue()
            assert await flow.result(30) == 2
        assert (store.reads, (await flow.last.record()).attempt) == (2, 1)


async def test_a_job_gets_no_result_of_another_tenant(app: Dutiful) -> None:
    @app.job
    async def secret() -> str:
        return "of acme"

    @app.job(retry=ONCE)
    async def read(found: str) -> str:
        return found

    async with running(app):
        job = await secret.options(tenant="acme").enqueue()
        assert await job.result(30) == "of acme"
        forged = msgspec.json.encode({"results": {"found": str(job.id)}}).decode()
        for tenant in ("other", None):
            one = read.prepare(Options(tenant=tenant), {"found": ""})
            with pytest.raises(JobFailed, match="of another tenant"):
                await (await app.submit(msgspec.structs.replace(one, options=forged), None)).result(30)
        one = read.prepare(Options(tenant="acme"), {"found": ""})
        again = await app.submit(msgspec.structs.replace(one, options=forged), None)
        assert await again.result(30) == "of acme"  # so are jobs that are sent again
