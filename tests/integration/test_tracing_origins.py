"""Traces of jobs that no code of the user's has enqueued: schedules, people and SQL made them."""

from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from running_workers import eventually, working
from test_tracing import PARENT, above, facts, id_of, nothing_yet, sdk, span, spans, traced

from dutiful import DeadLetterFilter, Dutiful, Retry
from dutiful.core import ids
from dutiful.core.review.state import ReviewAct
from dutiful.maintenance.scheduler import Scheduler
from dutiful.store.schedules import Fired

__all__ = ["nothing_yet", "sdk", "traced"]  # fixtures
SHOP = trace.get_tracer("shop")
ONCE = Retry(max_attempts=1)


def linked(one: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in one.links]


async def test_a_job_of_a_schedule_begins_a_trace_of_its_own(traced: Dutiful) -> None:
    @traced.job
    async def beat() -> None: ...

    traced.schedule(beat, every="1s", name="heart")
    with SHOP.start_as_current_span("start"):
        async with working(traced):

            async def ran() -> bool:
                return bool(spans("run beat"))

            await eventually(ran)

    attempt, produced = spans("run beat")[0], spans("enqueue beat")[0]
    assert above(attempt) == id_of(produced)
    assert (above(produced), produced.kind) == (None, SpanKind.PRODUCER)
    assert facts(produced)["messaging.message.id"] == facts(attempt)["messaging.message.id"]


async def test_a_firing_that_another_process_made_is_no_span(traced: Dutiful, monkeypatch: pytest.MonkeyPatch) -> None:
    @traced.job
    async def beat() -> None: ...

    traced.schedule(beat, every="1s")
    client = await traced.client()
    store, fire = client.store, client.store.schedules.fire
    await store.schedules.put(traced.schedule_records(await store.queries.clock()))

    async def beaten(fired: Fired) -> bool:
        assert await fire(fired)
        return await fire(fired)

    monkeypatch.setattr(store.schedules, "fire", beaten)
    scheduler = Scheduler(store, traced.new_id, client.tracer)

    async def fired() -> bool:
        assert not await scheduler.tick(await store.leadership.survey(UUID(int=1), timedelta(seconds=30)))
        return bool(await traced.jobs())

    await eventually(fired)
    assert spans("enqueue beat") == []
    assert not trace.get_current_span().get_span_context().is_valid, "nor is it current any more"


async def test_a_job_that_a_person_runs_again_belongs_to_their_trace_and_links_to_the_first(traced: Dutiful) -> None:
    broken = True

    @traced.job(retry=ONCE)
    async def mail() -> None:
        if broken:
            raise ValueError("no")

    async with working(traced):
        await mail.enqueue()
        ada = await traced.operator("ada")
        (letter,) = await eventually(lambda: ada.dead_letters.search(DeadLetterFilter()))
        broken = False
        with SHOP.start_as_current_span("first request"):
            again = (await ada.dead_letters.reprocess(letter.id)).new_job_id
        await (await traced.client()).result(again, "60s")
        with SHOP.start_as_current_span("second request"):
            once_more = (await ada.jobs.retry(again)).job_id
        await (await traced.client()).result(once_more, "60s")

    produced, ran = spans("enqueue mail"), spans("run mail")
    assert [above(one) for one in ran] == [id_of(one) for one in produced]
    assert [above(one) for one in produced] == [None, id_of(span("first request")), id_of(span("second request"))]
    assert [linked(one) for one in produced] == [[], [id_of(produced[0])], [id_of(produced[1])]]
    assert [facts(one)["messaging.message.id"] for one in produced[1:]] == [ids.public(again), ids.public(once_more)]


async def test_a_step_of_a_bulk_run_is_one_span_for_its_jobs(traced: Dutiful) -> None:
    broken = True

    @traced.job(retry=ONCE)
    async def mail() -> None:
        if broken:
            raise ValueError("no")

    async with working(traced):
        await mail.enqueue_many([{}, {}])
        ada = await traced.operator("ada")

        async def dead() -> bool:
            return await ada.dead_letters.count(DeadLetterFilter()) == 2

        await eventually(dead)
        broken = False
        with SHOP.start_as_current_span("request"):
            await ada.bulk.start(ReviewAct.REPROCESS, DeadLetterFilter())

        async def ran() -> bool:
            return len(spans("run mail")) == 4

        await eventually(ran)

    first, produced = spans("enqueue mail")
    assert (above(produced), facts(produced)["messaging.batch.message_count"]) == (None, 2)
    assert linked(produced) == [id_of(first)]
    assert [above(one) for one in spans("run mail")[2:]] == [id_of(produced)] * 2


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_a_job_of_sql_belongs_to_the_trace_that_it_names(traced: Dutiful, app_url: str) -> None:
    @traced.job
    async def bill() -> None: ...

    connection = await asyncpg.connect(app_url)
    for given in (PARENT, "00-nonsense", f"{PARENT}\n", None):
        await connection.execute("SELECT dutiful.enqueue('bill', p_traceparent => $1)", given)
    await connection.close()
    async with working(traced):

        async def ran() -> bool:
            return len(spans("run bill")) == 4

        await eventually(ran)

    parents = sorted((above(one) or 0) for one in spans("run bill"))
    assert parents == [0, 0, 0, int(PARENT.split("-")[2], 16)]
    assert [len(one.links) for one in spans("run bill")] == [0] * 4
