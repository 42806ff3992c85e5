"""Trees in SQLite: all jobs of one correlation id."""

from datetime import datetime
from uuid import UUID

from dutiful.core.states import State
from dutiful.store.trees import TreeCancel, TreeProgress, root_of, tree_progress
from dutiful.stores.sqlite import placement
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, browses, writes
from dutiful.stores.sqlite.engine.codec import clock, maybe_moment, moment, uuid


class SqliteTrees(Subject):
    @browses
    def progress(self, db: Connection, correlation_id: str, *, tenant: str | None = None) -> TreeProgress:
        rows = db.rows(SQL["tree_progress"], _tree(correlation_id, tenant))
        return tree_progress(
            correlation_id,
            [
                (state, count, moment(created), maybe_moment(started), maybe_moment(finished))
                for state, count, created, started, finished in rows
            ],
        )

    @browses
    def oldest(
        self,
        db: Connection,
        correlation_id: str,
        limit: int,
        *,
        failed: bool = False,
        tenant: str | None = None,
    ) -> list[UUID]:
        window = {"failed": failed, "limit": limit}
        return [uuid(job_id) for (job_id,) in db.rows(SQL["oldest_of_tree"], _tree(correlation_id, tenant) | window)]

    @writes
    def cancel(
        self,
        db: Connection,
        correlation_id: str,
        reason: str,
        before: UUID | None,
        limit: int,
        *,
        tenant: str | None = None,
        now: datetime | None = None,
    ) -> TreeCancel:
        window = {"before": None if before is None else before.bytes, "limit": limit}
        found = [job_id for (job_id,) in db.rows(SQL["tree_ids"], _tree(correlation_id, tenant) | window)]
        cancelled, requested, at = 0, [], clock(now)
        for job_id in found:
            if placement.state_of(db, job_id) is State.RUNNING:
                db.change(SQL["request_cancel"], (job_id, at, reason))
                requested.append(uuid(job_id))
            else:
                cancelled += placement.cancel_waiting(db, job_id, reason, at)
        return TreeCancel(cancelled, tuple(requested), uuid(found[-1]) if len(found) >= limit else None)


def _tree(correlation_id: str, tenant: str | None) -> dict[str, object]:
    root = root_of(correlation_id)
    return {"correlation": correlation_id, "root": None if root is None else root.bytes, "tenant": tenant}
