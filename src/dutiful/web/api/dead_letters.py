"""Dead letters over HTTP; paths and fields say dlq, because existing clients use them."""

from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import Field

from dutiful.core import ids
from dutiful.web import listing
from dutiful.web.admission import AppDep, OperatorDep
from dutiful.web.api import dead_letter_shapes as shapes
from dutiful.web.operations import Operations
from dutiful.web.problems import field_problem
from dutiful.web.shapes import NO_NOTES, NO_REASON, Ask, JobId, Limit, Notes, Reason

LIST = "dead letters"
dead_letters = Operations("Dead letters", "/admin/dlq")


@dead_letters.read("/")
async def list_dead_letters(
    operator: OperatorDep, app: AppDep, query: Annotated[shapes.ListQuery, Query()]
) -> shapes.DeadLetterPage:
    """List dead letters, the newest first."""
    try:
        after = None if query.cursor is None else listing.read_letter_cursor(LIST, query.cursor)
    except listing.BadCursor as error:
        raise field_problem("cursor", str(error)) from None
    wanted = query.read(app)
    found = await operator.dead_letters.search(wanted, after=after, limit=query.limit + 1, details=False)
    page = found[: query.limit]
    return shapes.DeadLetterPage(
        dlq_items=[shapes.item(letter, app) for letter in page],
        total_count=await operator.dead_letters.count(wanted),
        next_cursor=listing.of_letter_cursor(LIST, page[-1].cursor) if len(found) > query.limit else None,
    )


@dead_letters.read("/statistics/")
async def count_dead_letters(
    operator: OperatorDep, app: AppDep, query: Annotated[shapes.FilterAsk, Query()]
) -> shapes.DeadLetterStatistics:
    """Count dead letters by status, category, job type and error class."""
    return shapes.statistics(await operator.dead_letters.counts(query.read(app)), app)


@dead_letters.read("/groups/")
async def group_dead_letters(
    operator: OperatorDep, app: AppDep, query: Annotated[shapes.GroupsQuery, Query()]
) -> shapes.ErrorGroups:
    """Group dead letters by similar errors, the largest group first."""
    found = await operator.dead_letters.groups(query.read(app), query.limit)
    return shapes.ErrorGroups(groups=[shapes.group(one, app) for one in found])


@dead_letters.read("/{dlq_id}/")
async def get_dead_letter(operator: OperatorDep, app: AppDep, dlq_id: JobId) -> shapes.DeadLetterDetail:
    """Show everything about a dead letter, including its payload and every attempt's error."""
    return shapes.detail(await operator.dead_letters.get(dlq_id), app)


@dead_letters.act("/{dlq_id}/reprocess/", "dead_letter.reprocess", target="dlq_id")
async def reprocess_dead_letter(
    operator: OperatorDep, dlq_id: JobId, ask: shapes.ReprocessAsk = shapes.UNCHANGED
) -> shapes.ReprocessAnswer:
    """Run it again as a new job with the same payload or an edited one, and with a new unique key."""
    done = await operator.dead_letters.reprocess(dlq_id, ask.notes, ask.payload)
    return shapes.ReprocessAnswer(
        message="DLQ item reprocessed successfully",
        dlq_id=done.dead_letter_id,
        new_job_id=done.new_job_id,
        new_idempotency_key=done.new_unique_key,
    )


@dead_letters.act("/{dlq_id}/discard/", "dead_letter.discard", target="dlq_id")
async def discard_dead_letter(operator: OperatorDep, dlq_id: JobId, ask: Notes = NO_NOTES) -> shapes.ReviewAnswer:
    """Decide that it is not run again."""
    letter = await operator.dead_letters.discard(dlq_id, ask.notes)
    return shapes.ReviewAnswer(message="DLQ item discarded", dlq_id=letter.id, status=letter.status)


@dead_letters.act("/{dlq_id}/acknowledge/", "dead_letter.acknowledge", target="dlq_id")
async def acknowledge_dead_letter(operator: OperatorDep, dlq_id: JobId, ask: Notes = NO_NOTES) -> shapes.ReviewAnswer:
    """Mark it as seen and not decided yet."""
    letter = await operator.dead_letters.acknowledge(dlq_id, ask.notes)
    return shapes.ReviewAnswer(message="DLQ item acknowledged", dlq_id=letter.id, status=letter.status)


@dead_letters.act("/{dlq_id}/resolve/", "dead_letter.resolve", target="dlq_id")
async def resolve_dead_letter(operator: OperatorDep, dlq_id: JobId, ask: Notes = NO_NOTES) -> shapes.ReviewAnswer:
    """Mark it as fixed by hand."""
    letter = await operator.dead_letters.resolve(dlq_id, ask.notes)
    return shapes.ReviewAnswer(message="DLQ item resolved", dlq_id=letter.id, status=letter.status)


bulk = Operations("Dead letters in bulk", "/admin/dlq/bulk")


class RunsQuery(Ask):
    running: bool = Field(default=False, description="Only running ones, the oldest first.")
    limit: Limit = Field(default=50, description="There is no next page.")


@bulk.ask("/preview/")
async def preview_bulk(operator: OperatorDep, app: AppDep, ask: shapes.PreviewAsk) -> shapes.PreviewAnswer:
    """Count the dead letters that an act would change, with a sample and the largest groups of errors."""
    found = await operator.bulk.preview(ask.act, ask.filter.read(app))
    return shapes.PreviewAnswer(
        count=found.count,
        sample=[shapes.item(letter, app) for letter in found.sample],
        groups=[shapes.group(one, app) for one in found.groups],
    )


@bulk.act("/", "dead_letter.bulk", status=202)
async def start_bulk(
    operator: OperatorDep, app: AppDep, request: Request, response: Response, ask: shapes.BulkAsk
) -> shapes.BulkAnswer:
    """Start a run over all dead letters that the filter finds now; workers carry it out."""
    run = shapes.bulk(await operator.bulk.start(ask.act, ask.filter.read(app), ask.reason))
    response.headers["location"] = f"{request.url.path.rstrip('/')}/{ids.public(run.id)}/"
    return run


@bulk.read("/")
async def list_bulk_runs(operator: OperatorDep, query: Annotated[RunsQuery, Query()]) -> shapes.BulkRuns:
    """List bulk runs, the newest first."""
    found = await operator.bulk.all(running=query.running, limit=query.limit)
    return shapes.BulkRuns(runs=[shapes.bulk(run) for run in found])


@bulk.read("/{run_id}/")
async def get_bulk_run(operator: OperatorDep, run_id: JobId) -> shapes.BulkAnswer:
    """Show the progress of a run."""
    return shapes.bulk(await operator.bulk.get(run_id))


@bulk.act("/{run_id}/stop/", "dead_letter.bulk_stop", target="run_id")
async def stop_bulk(operator: OperatorDep, run_id: JobId, ask: Reason = NO_REASON) -> shapes.BulkAnswer:
    """Stop a run; what it has done stays done."""
    return shapes.bulk(await operator.bulk.stop(run_id, ask.reason))
