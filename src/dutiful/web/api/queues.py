"""Queues over HTTP: count jobs by status, and list queues."""

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Query
from pydantic import Field

from dutiful.core.states import State
from dutiful.web.admission import OperatorDep
from dutiful.web.operations import Operations
from dutiful.web.shapes import Ask, Shape, Text

statistics = Operations("Queue", "/admin/queue")
queues = Operations("Queue", "/admin/queues")


class StatisticsQuery(Ask):
    tenant: Text | None = None
    hours: int = Field(default=1, ge=1, le=744, description="Count jobs that ended within this time.")


class EndedQuery(Ask):
    hours: int = Field(default=1, ge=1, le=744, description="Count jobs that ended within this time.")


class TenantCount(Shape):
    tenant: str | None
    status: State = Field(validation_alias="state")
    jobs: int


class EndedByTenant(Shape):
    ended: list[TenantCount]


class QueueItem(Shape):
    queue: str
    scheduled: int
    ready: int
    blocked: int
    running: int
    oldest_ready_at: datetime | None
    paused: bool
    estimated: bool = Field(description="There are too many jobs to count: the counts are estimates.")
    queues: int = Field(
        description="1. Of more than 1,000 queues, the last item has the empty name, and adds up so many others, or "
        "at least so many if it is an estimate."
    )


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


@statistics.read("/statistics/")
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


@statistics.read("/statistics/tenants/")
async def ended_by_tenant(operator: OperatorDep, query: Annotated[EndedQuery, Query()]) -> EndedByTenant:
    """Count jobs that ended lately by tenant and status; of at most 100,000."""
    found = await operator.queues.ended_by_tenant(timedelta(hours=query.hours))
    return EndedByTenant(ended=[TenantCount.model_validate(one) for one in found])


@queues.read("/")
async def list_queues(operator: OperatorDep, query: Annotated[QueuesQuery, Query()]) -> Queues:
    """List the queues that have jobs, with counts by status.

    Of more than 1,000, those with the most, and the sum of the others.
    """
    return Queues(queues=[QueueItem.model_validate(one) for one in await operator.queues.all(query.tenant)])
