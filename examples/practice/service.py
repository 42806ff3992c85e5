"""The platform's app: every category, every job type, and what their handlers work with."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2

from dutiful import Dutiful, Retry
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
from examples.practice.categories import CATEGORIES, JOB_TYPES, NORMAL
from examples.practice.firms import Firms
from examples.practice.office import Addresses, Office
from examples.practice.queue import JobQueue

# The handlers of each category: functions named as its job types are.
MODULES = {
    "ingestion": ingestion,
    "sync": sync,
    "recurrence": recurrence,
    "orchestration": orchestration,
    "documents": documents,
    "notifications": notifications,
    "export": export,
    "maintenance": maintenance,
}
# 2, 4, 8, 16 s between attempts, or 60, 120, 240 s when asked to slow down; a fifth more or less, at most five minutes.
RETRY = Retry.named("patient", max_attempts=5)


def practice_app(database_url: str, firms: Firms, addresses: Addresses, **settings: Any) -> Dutiful:
    """Jobs are kept at `database_url`, what the firms own in `firms`."""
    app = Dutiful(database_url, tenants=True, **settings)
    for category, rules in CATEGORIES.items():
        app.category(category, rules)
        for job_type in JOB_TYPES[category]:
            app.job(category=category, priority=NORMAL, retry=RETRY)(getattr(MODULES[category], job_type))

    @app.resource
    async def office() -> AsyncIterator[Office]:
        async with httpx2.AsyncClient(timeout=10) as http:
            yield Office(firms, addresses, http, lambda firm_id: JobQueue(app, firm_id))

    return app
