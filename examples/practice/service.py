"""The platform's app: all categories, job types and resources."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2

from dutiful import Dutiful, Retry, Rules
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
from examples.practice.categories import CATEGORIES, JOB_TYPES, MORE_REFERENCES, NORMAL
from examples.practice.firms import Firms
from examples.practice.platform import Addresses, Platform
from examples.practice.queue import JobQueue

# The handlers of each category: functions with the names of its job types.
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
# 2, 4, 8, 16 s between attempts, or 60, 120, 240 s when rate limited; with 20 % jitter, at most five minutes.
RETRY = Retry.named("patient", max_attempts=5)


def practice_app(database_url: str | None, firms: Firms, addresses: Addresses, **settings: Any) -> Dutiful:
    """Stores jobs at `database_url`, and the data of firms in `firms`."""
    app = Dutiful(database_url, tenants=True, **settings)
    for category, rules in CATEGORIES.items():
        app.category(category, rules)
        for job_type in JOB_TYPES[category]:
            more = Rules(references=MORE_REFERENCES.get(job_type, ()))
            app.job(category=category, rules=more, priority=NORMAL, retry=RETRY)(getattr(MODULES[category], job_type))

    @app.resource
    async def platform() -> AsyncIterator[Platform]:
        async with httpx2.AsyncClient(timeout=10) as http:
            yield Platform(firms, addresses, http, lambda firm_id: JobQueue(app, firm_id))

    return app
