"""New jobs over HTTP, of the kinds that this process knows."""

from datetime import timedelta
from typing import Any

from pydantic import Field

from dutiful.core.job import OnConflict, Scope, Unique
from dutiful.web.gates import TheOperator
from dutiful.web.operations import Operations
from dutiful.web.shapes import Ask, JobId, LongText, Moment, PublicId, Shape, Text

LONGEST = 10 * 365 * 24 * 3600
enqueueing = Operations("Jobs", "/admin/jobs")


class UniqueAsk(Ask):
    """A key that only one job may hold, and what becomes of the second."""

    key: Text
    scope: Scope = Unique("").scope
    on_conflict: OnConflict = Unique("").on_conflict
    window_seconds: float | None = Field(default=None, gt=0, le=LONGEST)
    across_kinds: bool = False

    def read(self) -> Unique:
        window = None if self.window_seconds is None else timedelta(seconds=self.window_seconds)
        return Unique(self.key, self.scope, self.on_conflict, window, self.across_kinds)


class OptionsAsk(Ask):
    """How this job differs from what its kind declares."""

    queue: Text | None = None
    priority: int | None = Field(default=None, ge=0, le=2_147_483_647, description="Lower runs first.")
    run_at: Moment | None = None
    delay_seconds: float | None = Field(default=None, ge=0, le=LONGEST, description="Instead of run_at.")
    unique: UniqueAsk | None = None
    tenant: Text | None = None
    correlation_id: Text | None = None
    subject: dict[str, Any] | None = Field(default=None, examples=[{"order": 7}])
    max_attempts: int | None = Field(default=None, ge=1, le=2_147_483_647)
    depends_on: list[JobId] = Field(default=[], max_length=100)

    def read(self) -> dict[str, Any]:
        given = {name: value for name, value in self if value is not None and value != []}
        if self.delay_seconds is not None:
            given["delay"] = timedelta(seconds=given.pop("delay_seconds"))
        if self.unique is not None:
            given["unique"] = self.unique.read()
        return given


class EnqueueAsk(Ask):
    kind: Text = Field(examples=["email_ingestion_fetch"])
    payload: dict[str, Any] = Field(default={}, examples=[{"connection_id": 456}])
    options: OptionsAsk = OptionsAsk()
    reason: LongText | None = None


class EnqueueAnswer(Shape):
    job_id: PublicId
    created: bool = Field(description="False: another job holds the key, and stands for this one, too.")


@enqueueing.act("/", "job.enqueue", status=201)
async def enqueue_job(operator: TheOperator, ask: EnqueueAsk) -> EnqueueAnswer:
    """Enqueue a job, checked like one that code enqueues; 409 tells which job holds its key."""
    done = await operator.enqueue(ask.kind, ask.payload, ask.reason, **ask.options.read())
    return EnqueueAnswer(job_id=done.job_id, created=done.made)
