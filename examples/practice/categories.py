"""The eight categories of jobs, their rules and their job types."""

from uuid import UUID

from dutiful import OnConflict, Rules, Scope, Unique

PAYLOAD_VERSION = "1.0"
PAYLOAD_LIMIT = 10_240  # bytes
NORMAL = 2  # priority; lower runs first

JOB_TYPES: dict[str, tuple[str, ...]] = {
    "ingestion": ("email_ingestion_fetch", "email_ingestion_parse"),
    "sync": ("calendar_sync_pull", "calendar_sync_push"),
    "recurrence": ("recurrence_period_generate", "recurrence_work_create"),
    "orchestration": ("orchestration_step_execute",),
    "documents": ("document_scan", "document_classify"),
    "notifications": ("notification_email_send", "notification_inapp_create"),
    "export": ("firm_export", "firm_purge"),
    "maintenance": ("session_expire", "data_archival"),
}
# The id that every payload of the category has.
REFERENCES = {
    "ingestion": "connection_id",
    "sync": "calendar_id",
    "recurrence": "engagement_id",
    "orchestration": "execution_id",
    "documents": "document_id",
    "notifications": "notification_id",
    "export": "export_id",
    "maintenance": "run_id",
}

EVERY_PAYLOAD = Rules(
    required={"tenant_id": int, "correlation_id": UUID, "idempotency_key": str},
    tenant="tenant_id",
    correlation_id="correlation_id",
    # A firm can use a key only once, for any job type.
    unique=Unique("idempotency_key", scope=Scope.FOREVER, on_conflict=OnConflict.REJECT, across_kinds=True),
    forbid=[
        # Names of content, besides those that Dutiful knows: a firm's mail and papers stay in its own tables.
        *("html", "text", "transcript", "attachment", "note", "notes", "comment"),
        # Names that Dutiful knows, with a number, which it would let pass: here no count has such a name.
        *("token", "secret", "api_key", "private_key", "body", "content"),
    ],
    versions=[PAYLOAD_VERSION],
    limit=PAYLOAD_LIMIT,
)
# Further ids that jobs of a type must have. What else a handler takes is typed by its parameters.
MORE_REFERENCES = {
    "email_ingestion_fetch": ["external_message_id"],
    "email_ingestion_parse": ["external_message_id"],
}
CATEGORIES = {name: EVERY_PAYLOAD.plus(Rules(references=[reference])) for name, reference in REFERENCES.items()}
