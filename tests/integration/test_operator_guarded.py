"""An operator where the database itself keeps tenants apart: what is theirs works, and nothing else is there."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from operating import operator

from databases import Postgres
from dutiful.auditing import AuditFilter
from dutiful.core.errors import DeadLetterNotFound, JobNotFound
from dutiful.core.principal import Role
from dutiful.core.review import ReviewAct, ReviewState
from dutiful.core.transitions import State
from dutiful.operator import Operator
from dutiful.reading import JobFilter
from dutiful.reviewing import BulkState, DeadLetterFilter
from dutiful.services.reviewer import Reviewer
from dutiful.services.sealer import Sealer
from dutiful.stores.postgres import PostgresStore
from tenanted import World, guarded

pytestmark = pytest.mark.req("W67")


@pytest.fixture(scope="module")
def world(postgres18: Postgres) -> Iterator[World]:
    with guarded(postgres18, "dutiful_tenants_operator") as found:
        yield found


@pytest.fixture
async def everybody(world: World) -> AsyncIterator[PostgresStore]:
    async with world.store("application") as store:
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
    jobs = await ann.jobs(JobFilter())
    assert {job.tenant for job in jobs} == {"acme"}
    assert set(own.values()) <= {job.id for job in jobs}
    for job_id in own.values():
        await ann.explain(job_id)
        await ann.attempts(job_id)
        await ann.phases(job_id)
        await ann.needs(job_id)
        await ann.posts_of(job_id)
    assert {letter.tenant for letter in await ann.dead_letters(DeadLetterFilter())} == {"acme"}
    assert {run.filter.tenant for run in await ann.bulk_runs()} == {"acme"}
    assert {event.tenant for event in await ann.audit_events(AuditFilter())} == {"acme"}
    assert {q.queue for q in await ann.queues()} == {"of_acme"}
    assert (await ann.stats(timedelta(hours=1))).dead_letters == 1


async def test_nothing_of_another_tenant_can_be_acted_on(
    ann: Operator, foreign: dict[str, UUID], everybody: PostgresStore
) -> None:
    dead = foreign[State.FAILED]
    before = await everybody.dead_letter(dead)

    for ask in (
        ann.cancel(foreign[State.READY]),
        ann.retry(foreign[State.SCHEDULED]),
        ann.fail(foreign[State.RUNNING]),
        ann.fail(foreign[State.READY]),
    ):
        with pytest.raises(JobNotFound):
            await ask
    for decide in (ann.reprocess, ann.discard, ann.resolve, ann.acknowledge):
        with pytest.raises(DeadLetterNotFound):
            await decide(dead)

    assert await everybody.dead_letter(dead) == before


async def test_acts_on_their_own_are_done_and_recorded(
    ann: Operator, own: dict[str, UUID], world: World, everybody: PostgresStore
) -> None:
    assert (await ann.cancel(own[State.READY], "mine")).changed
    await ann.acknowledge(own[State.FAILED], "looking")
    run = await ann.start_bulk(ReviewAct.REPROCESS, DeadLetterFilter(), "mended")
    run = await ann.step_bulk(run.id)
    assert (run.state, run.done) == (BulkState.DONE, 1)
    letter = await ann.dead_letter(own[State.FAILED])
    assert letter.status is ReviewState.REPROCESSING
    assert letter.new_job_id is not None
    assert (await ann.job(letter.new_job_id)).tenant == "acme"
    retried = await ann.retry(own[State.COMPLETED], "again")
    assert (await ann.job(retried.job_id)).tenant == "acme"
    for state in (State.RUNNING, State.SCHEDULED):
        assert await ann.fail(own[state], "by hand") is State.FAILED
        assert (await ann.dead_letter(own[state])).message == "failed by ann: by hand"

    async with world.store("worker") as store:
        await Reviewer(store, {}, lambda lines: None).step_all()  # of those that others have begun
        while await Sealer(store).seal_some():
            pass
    found = await operator(everybody).verify_audit()
    assert (found.broken, found.unsealed) == (None, 0)
    done = [event for event in await ann.audit_events(AuditFilter(principal="ann")) if event.outcome == "succeeded"]
    assert {event.action for event in done} == {
        "job.cancel",
        "job.fail",
        "job.retry",
        "dead_letter.acknowledge",
        "dead_letter.bulk",
        "dead_letter.reprocess",
        "dead_letter.bulk_done",
    }
