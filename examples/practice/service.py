"""The platform's app: every category, every job type, and what their handlers work with."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2

from dutiful import Dutiful
from examples.practice import (
    documents,
    export,
    ingestion,
    maintenance,
    notifications,
    orchestration,
    recurrence,
    sync,
)
from examples.practice.categories import CATEGORIES, NORMAL
from examples.practice.errors import RETRY
from examples.practice.firms import Firms
from examples.practice.office import Addresses, Office
from examples.practice.queue import JobQueue

HANDLERS: dict[str, Sequence[Callable[..., Any]]] = {
    "ingestion": (ingestion.email_ingestion_fetch, ingestion.email_ingestion_parse),
    "sync": (sync.calendar_sync_pull, sync.calendar_sync_push),
    "recurrence": (recurrence.recurrence_period_generate, recurrence.recurrence_work_create),
    "orchestration": (orchestration.orchestration_step_execute,),
    "documents": (documents.document_scan, documents.document_classify),
    "notifications": (notifications.notification_email_send, notifications.notification_inapp_create),
    "export": (export.firm_export, export.firm_purge),
    "maintenance": (maintenance.session_expire, maintenance.data_archival),
}


def practice_app(database_url: str, firms: Firms, addresses: Addresses, **settings: Any) -> Dutiful:
    """Jobs are kept at `database_url`, what the firms own in `firms`."""
    app = Dutiful(database_url, tenants=True, **settings)
    for category, rules in CATEGORIES.items():
        app.category(category, rules)
        for handler in HANDLERS[category]:
            app.job(category=category, priority=NORMAL, retry=RETRY)(handler)

    @app.resource
    async def office() -> AsyncIterator[Office]:
        async with httpx2.AsyncClient(timeout=10) as http:
            yield Office(firms, addresses, http, lambda firm_id: JobQueue(app, firm_id))

    return app
