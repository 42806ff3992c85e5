"""Queues over HTTP: list jobs, count them by status, and list queues."""

from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

from fastapi import Query
from msgspec.structs import replace
from pydantic import Field

from dutiful.core.job import JobRecord
from dutiful.core.states import State
from dutiful.operator import Operator
from dutiful.store.queries import JobFilter, JobPage
from dutiful.web import listing
from dutiful.web.admission import AppDep, OperatorDep
from dutiful.web.api import job_shapes as shapes
from dutiful.web.operations import Operations
from dutiful.web.problems import field_problem
from dutiful.web.shapes import Ask, Shape, Text

LIST = "queue"
queue = Operations("Queue", "/admin/queue")  # lists jobs
queues = Operations("Queue", "/admin/queues")


class StatisticsQuery(Ask):
    tenant: Text | None = None
    hours: int = Field(default=1, ge=1, le=744, description="Count jobs that ended within this time.")


class QueueItem(Shape):
    queue: str
    scheduled: int
    ready: int
    blocked: int
    running: int
    oldest_ready_at: datetime | None
    paused: bool
    estimated: bool = Field(description="There are too many jobs to count: the counts are estimates.")


class QueuesQuery(Ask):
    tenant: Text | None = None


class Queues(Shape):
    queues: list[QueueItem]


class QueueStatistics(Shape):
    live: dict[str, int] = Field(description="Jobs that wait or run, by status.")
    finished: dict[str, int] = Field(description="Jobs that ended since, by status.")
    since: datetime
    oldest_ready_at: datetime | None
    dead_letters: int
    estimated: bool = Field(description="There are too many jobs to count: some counts are estimates.")
    queues: list[QueueItem]


@queue.read("/")
async def list_queue(
    operator: OperatorDep, app: AppDep, query: Annotated[shapes.QueueQuery, Query()]
) -> shapes.QueuePage:
    """List jobs, the newest first.

    A page with fewer jobs than asked for, even none, is not the last one as long as it has a next_cursor.
    """
    try:
        before = None if query.cursor is None else listing.read_id(LIST, query.cursor)
    except listing.BadCursor as error:
        raise field_problem("cursor", str(error)) from None
    page = await in_states(operator, query.read(app, before), query.status)
    return shapes.QueuePage(
        jobs=[shapes.item(job, app) for job in page],
        next_cursor=None if page.next is None else listing.of_id(LIST, page.next),
        window=shapes.Window(since=page.searched_since or query.since, until=query.until),
    )


async def in_states(operator: Operator, wanted: JobFilter, states: list[State]) -> JobPage:
    """One page of jobs in any of these states, merged from a page of each."""
    if len(states) < 2:
        return await operator.jobs.search(replace(wanted, state=states[0] if states else None))
    pages = [await operator.jobs.search(replace(wanted, state=state)) for state in dict.fromkeys(states)]
    # Only as far as every page has searched; beyond that, one may have jobs that it has not returned yet.
    end = max((page.next for page in pages if page.next is not None), default=None)
    jobs = sorted((job for page in pages for job in page if end is None or job.id >= end), key=_id, reverse=True)
    if len(jobs) > wanted.limit:
        jobs = jobs[: wanted.limit]
        end = jobs[-1].id
    since = max((page.searched_since for page in pages if page.searched_since is not None), default=None)
    return JobPage(jobs, end, since)


def _id(job: JobRecord) -> UUID:
    return job.id


@queue.read("/statistics/")
async def queue_statistics(operator: OperatorDep, query: Annotated[StatisticsQuery, Query()]) -> QueueStatistics:
    """Count jobs by status and by queue: live ones, and those that ended lately."""
    stats = await operator.queues.stats(timedelta(hours=query.hours), query.tenant)
    return QueueStatistics(
        live=stats.live,
        finished=stats.finished,
        since=stats.since,
        oldest_ready_at=stats.oldest_ready_at,
        dead_letters=stats.dead_letters,
        estimated=stats.estimated,
        queues=[QueueItem.model_validate(one) for one in stats.queues],
    )


@queues.read("/")
async def list_queues(operator: OperatorDep, query: Annotated[QueuesQuery, Query()]) -> Queues:
    """List the queues that have jobs, with counts by status."""
    return Queues(queues=[QueueItem.model_validate(one) for one in await operator.queues.all(query.tenant)])
