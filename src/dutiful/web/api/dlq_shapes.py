"""Dead letters as the admin API tells of them, in the words that its users have for them."""

from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from dutiful.app import Dutiful
from dutiful.core.error_class import ErrorClass
from dutiful.core.review import ReviewAct, ReviewState
from dutiful.reviewing import BulkRun, BulkState, DeadLetter, DeadLetterCounts, DeadLetterFilter, DeadLetterGroup
from dutiful.web.catalog import category_of, kinds_of
from dutiful.web.shapes import EXAMPLE_ID, Ask, Cursor, Limit, LongText, Moment, PublicId, Shape, Text, Texts

NONE = "null"  # as an item has it; the key of an object is always a text
EXAMPLE: dict[str, Any] = {
    "dlq_id": EXAMPLE_ID,
    "tenant": "acme",
    "category": "ingestion",
    "job_type": "email_ingestion_fetch",
    "status": "pending_review",
    "idempotency_key": "email_fetch_conn_456_msg_789",
    "correlation_id": "550e8400-e29b-41d4-a716-446655440000",
    "error_class": "non_retryable",
    "error_message": "Validation error: invalid payload",
    "attempt_count": 1,
    "original_created_at": "2030-01-01T10:00:00Z",
    "created_at": "2030-01-01T10:05:00Z",
}


class DlqFilter(Ask):
    """Which dead letters: those that fit all that is given."""

    status: list[ReviewState] = Field(default=[], max_length=10)
    category: Text | None = None
    job_type: Texts = Field(default=[], max_length=100)
    queue: Text | None = None
    tenant: Text | None = None
    correlation_id: Text | None = None
    error_class: ErrorClass | None = None
    error_type: Text | None = None
    fingerprint: Text | None = None
    text: Text | None = Field(default=None, description="Looked for in the error's message, whatever its case.")
    since: Moment | None = Field(default=None, description="Died then or later.")
    until: Moment | None = Field(default=None, description="Died before.")

    def read(self, app: Dutiful) -> DeadLetterFilter:
        return DeadLetterFilter(
            status=self.status,
            kinds=kinds_of(app, self.category, self.job_type),
            queue=self.queue,
            tenant=self.tenant,
            correlation_id=self.correlation_id,
            error_class=self.error_class,
            error_type=self.error_type,
            fingerprint=self.fingerprint,
            text=self.text,
            since=self.since,
            until=self.until,
        )


class DlqQuery(DlqFilter):
    cursor: Cursor | None = Field(default=None, description="next_cursor of the page before.")
    limit: Limit = 50


class GroupsQuery(DlqFilter):
    limit: Limit = 50


class DlqItem(Shape):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    dlq_id: PublicId
    tenant: str | None
    category: str | None
    job_type: str
    status: ReviewState
    idempotency_key: str | None
    correlation_id: str
    error_class: str | None
    error_message: str | None
    attempt_count: int
    original_created_at: datetime
    created_at: datetime


class DlqPage(Shape):
    dlq_items: list[DlqItem]
    total_count: int
    next_cursor: str | None


class DlqDetail(DlqItem):
    payload: Any
    queue: str
    max_attempts: int
    error_type: str | None
    fingerprint: str | None
    errors: list[dict[str, Any]]
    history: list[dict[str, Any]] = Field(description="Every earlier attempt with its error, the first one first.")
    notes: str | None
    reviewed_by: str | None
    reviewed_at: datetime | None
    acknowledged_by: str | None
    acknowledged_at: datetime | None
    new_job_id: PublicId | None
    resolution: str | None


class DlqStatistics(Shape):
    total_count: int
    by_status: dict[ReviewState, int] = Field(description="Every status, with 0 if there is none.")
    by_category: dict[str, int] = Field(description='"null" stands for those that have no category.')
    by_job_type: dict[str, int]
    by_error_class: dict[str, int] = Field(description='"null" stands for those that have no error class.')
    oldest_open_at: datetime | None


class DlqGroup(Shape):
    fingerprint: str | None
    job_type: str
    category: str | None
    error_class: str | None
    error_type: str | None
    error_message: str | None
    count: int
    first_at: datetime
    last_at: datetime
    newest_dlq_id: PublicId


class DlqGroups(Shape):
    groups: list[DlqGroup]


class ReprocessAsk(Ask):
    notes: LongText | None = Field(default=None, examples=["Fixed validation issue in source data, safe to reprocess"])
    payload: dict[str, Any] | None = Field(
        default=None, description="Instead of the original payload, which the dead letter keeps all the same."
    )


UNCHANGED = ReprocessAsk()


class ReprocessAnswer(Shape):
    message: str = Field(examples=["DLQ item reprocessed successfully"])
    dlq_id: PublicId
    new_job_id: PublicId
    new_idempotency_key: str | None = Field(examples=["email_fetch_conn_456_msg_789_retry_1735557600.123"])


class ReviewAnswer(Shape):
    message: str = Field(examples=["DLQ item discarded"])
    dlq_id: PublicId
    status: ReviewState


class PreviewAsk(Ask):
    act: ReviewAct
    # Asked for, so that nobody means all by leaving it out.
    filter: DlqFilter = Field(description="{} stands for all dead letters that may be acted on.")


class PreviewAnswer(Shape):
    count: int
    sample: list[DlqItem]
    groups: list[DlqGroup]


class BulkAsk(PreviewAsk):
    reason: LongText | None = None


class BulkAnswer(Shape):
    id: PublicId
    act: ReviewAct
    state: BulkState
    by: str
    reason: str | None
    created_at: datetime
    ended_at: datetime | None
    total: int = Field(description="Dead letters found when it began.")
    done: int
    skipped: int = Field(description="Those that somebody else was faster with, or that could not be acted on.")


class BulkRuns(Shape):
    runs: list[BulkAnswer]


def item(letter: DeadLetter, app: Dutiful) -> DlqItem:
    return DlqItem(**_item(letter, app))


def detail(letter: DeadLetter, app: Dutiful) -> DlqDetail:
    return DlqDetail(
        **_item(letter, app),
        payload=letter.payload,
        queue=letter.queue,
        max_attempts=letter.max_attempts,
        error_type=letter.error_type,
        fingerprint=letter.fingerprint,
        errors=letter.errors,
        history=letter.history,
        notes=letter.notes,
        reviewed_by=letter.reviewed_by,
        reviewed_at=letter.reviewed_at,
        acknowledged_by=letter.acknowledged_by,
        acknowledged_at=letter.acknowledged_at,
        new_job_id=letter.new_job_id,
        resolution=letter.resolution,
    )


def _item(letter: DeadLetter, app: Dutiful) -> dict[str, Any]:
    return {
        "dlq_id": letter.id,
        "tenant": letter.tenant,
        "category": category_of(app, letter.kind),
        "job_type": letter.kind,
        "status": letter.status,
        "idempotency_key": letter.unique_key,
        "correlation_id": letter.correlation_id,
        "error_class": letter.error_class,
        "error_message": letter.message,
        "attempt_count": letter.attempt,
        "original_created_at": letter.created_at,
        "created_at": letter.died_at,
    }


def statistics(counts: DeadLetterCounts, app: Dutiful) -> DlqStatistics:
    by_category: dict[str, int] = {}
    for kind, count in counts.by_kind.items():
        category = category_of(app, kind) or NONE
        by_category[category] = by_category.get(category, 0) + count
    return DlqStatistics(
        total_count=counts.total,
        by_status={state: counts.by_status.get(state, 0) for state in ReviewState},
        by_category=by_category,
        by_job_type=counts.by_kind,
        by_error_class={name or NONE: count for name, count in counts.by_class.items()},
        oldest_open_at=counts.oldest_open_at,
    )


def group(found: DeadLetterGroup, app: Dutiful) -> DlqGroup:
    return DlqGroup(
        fingerprint=found.fingerprint,
        job_type=found.kind,
        category=category_of(app, found.kind),
        error_class=found.error_class,
        error_type=found.error_type,
        error_message=found.message,
        count=found.count,
        first_at=found.first_at,
        last_at=found.last_at,
        newest_dlq_id=found.newest_id,
    )


def bulk(run: BulkRun) -> BulkAnswer:
    return BulkAnswer.model_validate(run)
