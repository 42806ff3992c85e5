"""One act on many dead letters over HTTP: a preview, a run that workers take to its end, and how far it is."""

from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import Field

from dutiful.core import ids
from dutiful.web.api import dlq_shapes as shapes
from dutiful.web.gates import TheApp, TheOperator
from dutiful.web.operations import Operations
from dutiful.web.shapes import NO_REASON, Ask, JobId, Limit, Reason

bulk = Operations("Dead letters in bulk", "/admin/dlq/bulk")


class RunsQuery(Ask):
    running: bool = Field(default=False, description="Only those that go on, the oldest first.")
    limit: Limit = Field(default=50, description="There is no page after them.")


@bulk.ask("/preview/")
async def preview_bulk(operator: TheOperator, app: TheApp, ask: shapes.PreviewAsk) -> shapes.PreviewAnswer:
    """Tell how many dead letters an act would meet, with a sample and the largest groups of errors."""
    found = await operator.preview(ask.act, ask.filter.read(app))
    return shapes.PreviewAnswer(
        count=found.count,
        sample=[shapes.item(letter, app) for letter in found.sample],
        groups=[shapes.group(one, app) for one in found.groups],
    )


@bulk.act("/", "dead_letter.bulk", status=202)
async def start_bulk(
    operator: TheOperator, app: TheApp, request: Request, response: Response, ask: shapes.BulkAsk
) -> shapes.BulkAnswer:
    """Begin a run over all dead letters that the filter finds now; workers take it to its end, step by step."""
    run = shapes.bulk(await operator.start_bulk(ask.act, ask.filter.read(app), ask.reason))
    response.headers["location"] = f"{request.url.path.rstrip('/')}/{ids.public(run.id)}/"
    return run


@bulk.read("/")
async def list_bulk_runs(operator: TheOperator, query: Annotated[RunsQuery, Query()]) -> shapes.BulkRuns:
    """List bulk runs, the newest first."""
    found = await operator.bulk_runs(running=query.running, limit=query.limit)
    return shapes.BulkRuns(runs=[shapes.bulk(run) for run in found])


@bulk.read("/{run_id}/")
async def get_bulk_run(operator: TheOperator, run_id: JobId) -> shapes.BulkAnswer:
    """Tell how far a run is."""
    return shapes.bulk(await operator.bulk_run(run_id))


@bulk.act("/{run_id}/stop/", "dead_letter.bulk_stop", target="run_id")
async def stop_bulk(operator: TheOperator, run_id: JobId, ask: Reason = NO_REASON) -> shapes.BulkAnswer:
    """Take no more steps of it; what is done stays done."""
    return shapes.bulk(await operator.stop_bulk(run_id, ask.reason))
