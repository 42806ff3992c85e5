"""An operator where the database itself keeps tenants apart: what is theirs works, and nothing else is there."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from operating import operator

from databases import Postgres
from dutiful.core.errors import DeadLetterNotFound, JobNotFound
from dutiful.core.principal import Role
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.core.states import State
from dutiful.maintenance.reviewer import Reviewer
from dutiful.maintenance.sealer import Sealer
from dutiful.operator import Operator
from dutiful.store.audit import AuditFilter
from dutiful.store.dead_letters import BulkState, DeadLetterFilter
from dutiful.store.queries import JobFilter
from dutiful.stores.postgres import PostgresStore
from tenanted import World, isolated

pytestmark = pytest.mark.req("W67")


@pytest.fixture(scope="module")
def world(postgres18: Postgres) -> Iterator[World]:
    with isolated(postgres18, "dutiful_tenants_operator") as found:
        yield found


@pytest.fixture
async def everybody(world: World) -> AsyncIterator[PostgresStore]:
    async with world.store("operator") as store:
        yield store


@pytest.fixture
def ann(everybody: PostgresStore) -> Operator:
    return operator(everybody, "ann", tenant="acme", role=Role.MANAGER)


@pytest.fixture
def own(world: World) -> dict[str, UUID]:
    return world.jobs["acme"]


@pytest.fixture
def foreign(world: World) -> dict[str, UUID]:
    return world.jobs["globex"]


async def test_lists_and_looks_show_their_own(ann: Operator, own: dict[str, UUID]) -> None:
    jobs = await ann.jobs.search(JobFilter())
    assert {job.tenant for job in jobs} == {"acme"}
    assert set(own.values()) <= {job.id for job in jobs}
    for job_id in own.values():
        await ann.jobs.explain(job_id)
        await ann.jobs.attempts(job_id)
        await ann.jobs.phases(job_id)
        await ann.jobs.dependencies(job_id)
        await ann.jobs.posts(job_id)
    assert {letter.tenant for letter in await ann.dead_letters.search(DeadLetterFilter())} == {"acme"}
    assert {run.filter.tenant for run in await ann.bulk.all()} == {"acme"}
    assert {event.tenant for event in await ann.audit.search(AuditFilter())} == {"acme"}
    assert {q.queue for q in await ann.queues.all()} == {"of_acme"}
    assert (await ann.queues.stats(timedelta(hours=1))).dead_letters == 1


async def test_nothing_of_another_tenant_can_be_acted_on(
    ann: Operator, foreign: dict[str, UUID], everybody: PostgresStore
) -> None:
    dead = foreign[State.FAILED]
    before = await everybody.dead_letters.find(dead)

    for ask in (
        ann.jobs.cancel(foreign[State.READY]),
        ann.jobs.retry(foreign[State.SCHEDULED]),
        ann.jobs.fail(foreign[State.RUNNING]),
        ann.jobs.fail(foreign[State.READY]),
    ):
        with pytest.raises(JobNotFound):
            await ask
    for decide in (
        ann.dead_letters.reprocess,
        ann.dead_letters.discard,
        ann.dead_letters.resolve,
        ann.dead_letters.acknowledge,
    ):
        with pytest.raises(DeadLetterNotFound):
            await decide(dead)

    assert await everybody.dead_letters.find(dead) == before


async def test_acts_on_their_own_are_done_and_recorded(
    ann: Operator, own: dict[str, UUID], world: World, everybody: PostgresStore
) -> None:
    assert (await ann.jobs.cancel(own[State.READY], "mine")).changed
    await ann.dead_letters.acknowledge(own[State.FAILED], "looking")
    run = await ann.bulk.start(ReviewAct.REPROCESS, DeadLetterFilter(), "fixed")
    run = await ann.bulk.step(run.id)
    assert (run.state, run.done) == (BulkState.DONE, 1)
    letter = await ann.dead_letters.get(own[State.FAILED])
    assert letter.status is ReviewState.REPROCESSING
    assert letter.new_job_id is not None
    assert (await ann.jobs.get(letter.new_job_id)).tenant == "acme"
    retried = await ann.jobs.retry(own[State.COMPLETED], "again")
    assert (await ann.jobs.get(retried.job_id)).tenant == "acme"
    for state in (State.RUNNING, State.SCHEDULED):
        assert await ann.jobs.fail(own[state], "by hand") is State.FAILED
        assert (await ann.dead_letters.get(own[state])).message == "failed by ann: by hand"

    async with world.store("worker") as store:
        await Reviewer(store.dead_letters, {}, lambda lines: None).step_all()  # of those that others have begun
        while await Sealer(store.audit).seal_batch():
            pass
    found = await operator(everybody).audit.verify()
    assert (found.broken, found.unsealed) == (None, 0)
    done = [event for event in await ann.audit.search(AuditFilter(principal="ann")) if event.outcome == "succeeded"]
    assert {event.action for event in done} == {
        "job.cancel",
        "job.fail",
        "job.retry",
        "dead_letter.acknowledge",
        "dead_letter.bulk",
        "dead_letter.reprocess",
        "dead_letter.bulk_done",
    }
