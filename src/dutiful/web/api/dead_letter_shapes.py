"""Dead letters in requests and responses, with the field names of existing clients."""

from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from dutiful.app import Dutiful
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.store.dead_letters import (
    BulkRun,
    BulkState,
    DeadLetter,
    DeadLetterCounts,
    DeadLetterFilter,
    DeadLetterGroup,
)
from dutiful.web.listing import category_of, kinds_of
from dutiful.web.shapes import EXAMPLE_ID, Ask, Cursor, Limit, LongText, Moment, PublicId, Shape, Text, Texts

NONE = "null"  # the key of a JSON object is always a text
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


class FilterAsk(Ask):
    """Selects dead letters that match all given fields."""

    status: list[ReviewState] = Field(default=[], max_length=10)
    category: Text | None = None
    job_type: Texts = Field(default=[], max_length=100)
    queue: Text | None = None
    tenant: Text | None = None
    correlation_id: Text | None = None
    error_class: ErrorClass | None = None
    error_type: Text | None = None
    fingerprint: Text | None = None
    text: Text | None = Field(default=None, description="Searched for in the error's message, ignoring case.")
    since: Moment | None = Field(default=None, description="Failed then or later.")
    until: Moment | None = Field(default=None, description="Failed before.")

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


class ListQuery(FilterAsk):
    cursor: Cursor | None = Field(default=None, description="next_cursor of the previous page.")
    limit: Limit = 50


class GroupsQuery(FilterAsk):
    limit: Limit = 50


class DeadLetterItem(Shape):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    dlq_id: PublicId = Field(validation_alias="id")
    tenant: str | None
    category: str | None = None  # known by the app only
    job_type: str = Field(validation_alias="kind")
    status: ReviewState
    idempotency_key: str | None = Field(validation_alias="unique_key")
    correlation_id: str
    error_class: str | None
    error_message: str | None = Field(validation_alias="message")
    attempt_count: int = Field(validation_alias="attempt")
    original_created_at: datetime = Field(validation_alias="created_at")
    created_at: datetime = Field(validation_alias="died_at")


class DeadLetterPage(Shape):
    dlq_items: list[DeadLetterItem]
    total_count: int
    next_cursor: str | None


class DeadLetterDetail(DeadLetterItem):
    payload: Any
    queue: str
    max_attempts: int
    error_type: str | None
    fingerprint: str | None
    errors: list[dict[str, Any]]
    history: list[dict[str, Any]] = Field(description="Earlier attempts with their errors, the first one first.")
    notes: str | None
    reviewed_by: str | None
    reviewed_at: datetime | None
    acknowledged_by: str | None
    acknowledged_at: datetime | None
    new_job_id: PublicId | None
    resolution: str | None


class DeadLetterStatistics(Shape):
    total_count: int
    by_status: dict[ReviewState, int] = Field(description="Every status, with 0 if there is none.")
    by_category: dict[str, int] = Field(description='"null" counts those without a category.')
    by_job_type: dict[str, int]
    by_error_class: dict[str, int] = Field(description='"null" counts those without an error class.')
    oldest_open_at: datetime | None


class ErrorGroup(Shape):
    fingerprint: str | None
    job_type: str = Field(validation_alias="kind")
    category: str | None = None  # known by the app only
    error_class: str | None
    error_type: str | None
    error_message: str | None = Field(validation_alias="message")
    count: int
    first_at: datetime
    last_at: datetime
    newest_dlq_id: PublicId = Field(validation_alias="newest_id")


class ErrorGroups(Shape):
    groups: list[ErrorGroup]


class ReprocessAsk(Ask):
    notes: LongText | None = Field(default=None, examples=["Fixed validation issue in source data, safe to reprocess"])
    payload: dict[str, Any] | None = Field(
        default=None, description="Instead of the original payload, which the dead letter keeps."
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
    # Required, so that a missing filter does not select all.
    filter: FilterAsk = Field(description="{} selects all dead letters on which the act is allowed.")


class PreviewAnswer(Shape):
    count: int
    sample: list[DeadLetterItem]
    groups: list[ErrorGroup]


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
    total: int = Field(description="Dead letters found at the start.")
    done: int
    skipped: int = Field(description="Those that were changed meanwhile, or on which the act was refused.")


class BulkRuns(Shape):
    runs: list[BulkAnswer]


def item(letter: DeadLetter, app: Dutiful) -> DeadLetterItem:
    return DeadLetterItem.model_validate(letter).model_copy(update={"category": category_of(app, letter.kind)})


def detail(letter: DeadLetter, app: Dutiful) -> DeadLetterDetail:
    return DeadLetterDetail.model_validate(letter).model_copy(update={"category": category_of(app, letter.kind)})


def group(found: DeadLetterGroup, app: Dutiful) -> ErrorGroup:
    return ErrorGroup.model_validate(found).model_copy(update={"category": category_of(app, found.kind)})


def statistics(counts: DeadLetterCounts, app: Dutiful) -> DeadLetterStatistics:
    by_category: dict[str, int] = {}
    for kind, count in counts.by_kind.items():
        category = category_of(app, kind) or NONE
        by_category[category] = by_category.get(category, 0) + count
    return DeadLetterStatistics(
        total_count=counts.total,
        by_status={state: counts.by_status.get(state, 0) for state in ReviewState},
        by_category=by_category,
        by_job_type=counts.by_kind,
        by_error_class={name or NONE: count for name, count in counts.by_class.items()},
        oldest_open_at=counts.oldest_open_at,
    )


def bulk(run: BulkRun) -> BulkAnswer:
    return BulkAnswer.model_validate(run)
