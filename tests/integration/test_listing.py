"""`app.jobs`: what an app asks for is what is listed."""

from datetime import UTC, datetime
from typing import Any

import pytest

from dutiful import Dutiful
from dutiful.core.errors import UsageError
from dutiful.core.ids import time_of
from dutiful.core.states import State


@pytest.mark.req("W51")
async def test_an_app_lists_jobs_by_everything_there_is_to_filter_by(app: Dutiful) -> None:
    @app.job
    async def greet(name: str) -> None: ...

    @app.job
    async def part(name: str) -> None: ...

    wanted = greet.options(tenant="acme", queue="mail", correlation_id="order-7", subject={"order": 7})
    first = await wanted.enqueue(name="Ada")
    second = await wanted.enqueue(name="Ada")
    await part.options(subject={"order": 7}).enqueue(name="Ada")

    filters: dict[str, Any] = {
        "state": "ready",
        "queue": "mail",
        "tenant": "acme",
        "correlation_id": "order-7",
        "text": "ADA",
    }
    page = await app.jobs(**filters, kinds={"greet"}, subject={"order": 7}, since=time_of(first.id), limit=1)
    rest = await app.jobs(**filters, kind="greet", before=page.next, until=datetime.now(UTC))

    assert [job.id for job in [*page, *rest]] == [second.id, first.id]
    assert rest.next is None
    assert {job.state for job in rest} == {State.READY}
    assert (await app.jobs(error_class="transient")).jobs == []


async def test_what_cannot_be_listed_is_refused_with_a_reason(app: Dutiful) -> None:
    with pytest.raises(UsageError, match="since 2030-01-01T00:00:00 has no time zone"):
        await app.jobs(since=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(UsageError, match="error_class 'bad' must be one of: transient"):
        await app.jobs(error_class="bad")
    with pytest.raises(UsageError, match="since is later than until"):
        await app.jobs(since=datetime(2030, 1, 2, tzinfo=UTC), until=datetime(2030, 1, 1, tzinfo=UTC))
    with pytest.raises(UsageError, match="limit 0"):
        await app.jobs(limit=0)
