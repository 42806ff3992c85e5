"""Dead letters over HTTP: list them, look at one, decide about one."""

from typing import Annotated

from fastapi import Query

from dutiful.web import cursor
from dutiful.web.api import dlq_shapes as shapes
from dutiful.web.gates import TheApp, TheOperator
from dutiful.web.operations import Operations
from dutiful.web.problems import field_problem
from dutiful.web.shapes import NO_NOTES, JobId, Notes

LIST = "dead letters"
dlq = Operations("Dead letters", "/admin/dlq")


@dlq.read("/")
async def list_dlq(operator: TheOperator, app: TheApp, query: Annotated[shapes.DlqQuery, Query()]) -> shapes.DlqPage:
    """List dead letters, the newest first."""
    try:
        after = None if query.cursor is None else cursor.read_place(LIST, query.cursor)
    except cursor.BadCursor as error:
        raise field_problem("cursor", str(error)) from None
    wanted = query.read(app)
    found = await operator.dead_letters(wanted, after=after, limit=query.limit + 1)
    page = found[: query.limit]
    return shapes.DlqPage(
        dlq_items=[shapes.item(letter, app) for letter in page],
        total_count=await operator.dead_letter_count(wanted),
        next_cursor=cursor.of_place(LIST, page[-1].place) if len(found) > query.limit else None,
    )


@dlq.read("/statistics/")
async def dlq_statistics(
    operator: TheOperator, app: TheApp, query: Annotated[shapes.DlqFilter, Query()]
) -> shapes.DlqStatistics:
    """Count dead letters by status, category, job type and error class."""
    return shapes.statistics(await operator.dead_letter_counts(query.read(app)), app)


@dlq.read("/groups/")
async def dlq_groups(
    operator: TheOperator, app: TheApp, query: Annotated[shapes.GroupsQuery, Query()]
) -> shapes.DlqGroups:
    """Group dead letters whose errors are alike, the largest group first."""
    found = await operator.dead_letter_groups(query.read(app), query.limit)
    return shapes.DlqGroups(groups=[shapes.group(one, app) for one in found])


@dlq.read("/{dlq_id}/")
async def get_dlq(operator: TheOperator, app: TheApp, dlq_id: JobId) -> shapes.DlqDetail:
    """Tell everything about one, its payload and every attempt's error included."""
    return shapes.detail(await operator.dead_letter(dlq_id), app)


@dlq.act("/{dlq_id}/reprocess/", "dead_letter.reprocess", target="dlq_id")
async def reprocess_dlq(
    operator: TheOperator, dlq_id: JobId, ask: shapes.ReprocessAsk = shapes.UNCHANGED
) -> shapes.ReprocessAnswer:
    """Run it again as a new job with the same payload, or an edited one; its key gets an ending of its own."""
    done = await operator.reprocess(dlq_id, ask.notes, ask.payload)
    return shapes.ReprocessAnswer(
        message="DLQ item reprocessed successfully",
        dlq_id=done.dead_letter_id,
        new_job_id=done.new_job_id,
        new_idempotency_key=done.new_unique_key,
    )


@dlq.act("/{dlq_id}/discard/", "dead_letter.discard", target="dlq_id")
async def discard_dlq(operator: TheOperator, dlq_id: JobId, ask: Notes = NO_NOTES) -> shapes.ReviewAnswer:
    """Decide that it is not run again."""
    letter = await operator.discard(dlq_id, ask.notes)
    return shapes.ReviewAnswer(message="DLQ item discarded", dlq_id=letter.id, status=letter.status)


@dlq.act("/{dlq_id}/acknowledge/", "dead_letter.acknowledge", target="dlq_id")
async def acknowledge_dlq(operator: TheOperator, dlq_id: JobId, ask: Notes = NO_NOTES) -> shapes.ReviewAnswer:
    """Say that somebody has seen it, and has not decided yet."""
    letter = await operator.acknowledge(dlq_id, ask.notes)
    return shapes.ReviewAnswer(message="DLQ item acknowledged", dlq_id=letter.id, status=letter.status)


@dlq.act("/{dlq_id}/resolve/", "dead_letter.resolve", target="dlq_id")
async def resolve_dlq(operator: TheOperator, dlq_id: JobId, ask: Notes = NO_NOTES) -> shapes.ReviewAnswer:
    """Say that it was mended by hand."""
    letter = await operator.resolve(dlq_id, ask.notes)
    return shapes.ReviewAnswer(message="DLQ item resolved", dlq_id=letter.id, status=letter.status)
