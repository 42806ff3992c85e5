"""How long the records of ended jobs are kept: until purgatory_cleanup removes them."""

from datetime import UTC, datetime, timedelta

from dutiful import DeadLetterFilter, Dutiful, ReviewAct

WHO, WHY = "purgatory_cleanup", "its record has expired"


async def expire(app: Dutiful, retention: timedelta) -> int:
    """Deletes jobs that ended longer ago than this, in whatever state; how many.

    The dead letters of failed ones await a decision of an operator, and would be kept for it: it is made here.
    """
    operator = await app.operator(WHO)
    run = await operator.bulk.start(ReviewAct.DISCARD, DeadLetterFilter(until=datetime.now(UTC) - retention), WHY)
    while run.ended_at is None:
        run = await operator.bulk.step(run.id)
    return await operator.jobs.delete_finished(retention, WHY)
