"""The webhook outbox in SQLite: posts are written with a job's end or an alert's change, taken, and settled."""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.ids import from_parts
from dutiful.core.json import read, read_objects
from dutiful.core.states import State
from dutiful.store.webhooks import MALFORMED, PostResult, PostState, WebhookPost, WebhookRecord
from dutiful.stores.sqlite.engine import SQL, Connection, Row, Subject, browses, writes
from dutiful.stores.sqlite.engine.codec import clock, maybe_bytes, span, to_json
from dutiful.stores.sqlite.engine.columns import ID, PLAIN, POST, RAW, TIME, WEBHOOK, Codec, Columns
from dutiful.stores.sqlite.engine.sql import Conditions


class SqliteWebhooks(Subject):
    async def put(self, webhooks: Sequence[WebhookRecord]) -> None:
        await self._engine.write(lambda db: db.many(SQL["put_webhook"], map(WEBHOOK.encode, webhooks)))

    @writes
    def take(
        self, db: Connection, limit: int, hold: timedelta, *, avoid: Sequence[str] = (),
        names: Sequence[str] | None = None, retries: int | None = None, now: datetime | None = None,
    ) -> list[WebhookPost]:  # fmt: skip
        at = clock(now)
        which = {"now": at, "avoid": to_json(list(avoid)), "names": None if names is None else to_json(list(names))}
        again = limit if retries is None else min(limit, retries)
        due = [
            *db.rows(SQL["due_posts"], {**which, "again": 0, "limit": limit}),
            *db.rows(SQL["due_posts"], {**which, "again": 1, "limit": again}),
        ]
        ids = [id_ for _, id_ in sorted(due)[:limit]]
        db.many(SQL["take_post"], [(id_, at + span(hold)) for id_ in ids])
        taken = (db.row(SQL["taken_post"], (id_,)) for id_ in ids)
        return [POST.decode(row) for row in taken if row is not None]

    @writes
    def settle(self, db: Connection, result: PostResult, *, now: datetime | None = None) -> bool:
        at, delay = clock(now), result.delay or timedelta(0)
        post, state = (result.id.bytes, result.attempts), result.state.value
        ends = (at + span(delay), None) if result.state is PostState.PENDING else (None, at)
        changed = db.change(SQL["settle_post"], (*post, state, *ends, at, result.status, result.error))
        # A retry after a lost reply: it has been written already.
        return bool(changed) or db.value(SQL["post_state"], post) == state

    async def disable(self, name: str, reason: str, *, url: str | None = None, now: datetime | None = None) -> bool:
        return await self._engine.write(lambda db: _disable(db, name, reason, url, clock(now)))

    async def enable(self, name: str) -> bool:
        return await self._engine.write(lambda db: db.change(SQL["enable_webhook"], (name,)) > 0)

    @writes
    def remove(self, db: Connection, name: str, *, now: datetime | None = None) -> bool:
        _disable(db, name, "the webhook was removed", None, clock(now))
        return db.change(SQL["delete_webhook"], (name,)) > 0

    async def redeliver(self, post_id: UUID, *, now: datetime | None = None) -> bool:
        return await self._engine.write(lambda db: db.change(SQL["redeliver_post"], (post_id.bytes, clock(now))) > 0)

    async def all(self) -> list[WebhookRecord]:
        return [WEBHOOK.decode(row) for row in await self._engine.browse(lambda db: db.rows(SQL["webhooks"]))]

    @browses
    def posts(
        self, db: Connection, *, job_id: UUID | None = None, state: PostState | None = None, limit: int = 50
    ) -> list[WebhookPost]:
        """Newest first, because an id begins with the time of the job's end."""
        wanted = Conditions(limit=limit)
        wanted.add("job_id = :job_id", job_id=maybe_bytes(job_id))
        wanted.add("state = :state", state=state and state.value)
        rows = db.rows(f"{SQL['select_posts']} {wanted.where} ORDER BY id DESC LIMIT :limit", wanted.bindings)
        return [POST.decode(row) for row in rows]


class _Endpoint(msgspec.Struct, frozen=True):
    """The target of a post: a declared endpoint or, without a name, the job's own URL."""

    name: str | None
    url: str
    kinds: Sequence[str] | None
    states: Sequence[str] | None
    error: str | None = None  # why it cannot be posted

    def wants(self, kind: str, state: str) -> bool:
        return (self.kinds is None or kind in self.kinds) and (self.states is None or state in self.states)


def write_posts(
    db: Connection, ended: Sequence[bytes], naming: Sequence[bytes], now: int, state: State | None = None
) -> None:
    """Writes the posts about jobs that ended in this transaction; `naming`: those that may have their own URL.

    `state` is that of all jobs, if they ended in the same one: then one query is enough if no endpoint wants it.
    """
    endpoints = [
        _Endpoint(name, url, read(kinds), read(states)) for name, url, kinds, states in db.rows(SQL["job_webhooks"])
    ]
    if state is not None:
        endpoints = [endpoint for endpoint in endpoints if endpoint.states is None or state in endpoint.states]
    posts = [post for job_id in (ended if endpoints else naming) for post in _posts_about(db, job_id, endpoints, now)]
    if posts:
        db.many(SQL["insert_post"], posts)


def write_alert_posts(db: Connection, event: str, data: Mapping[str, Any], now: int) -> None:
    body = to_json(data)
    for name, url in db.rows(SQL["alert_webhooks"]):
        db.run(SQL["insert_post"], (_new_id(now), None, name, url, event, body, now, None, None))


def _new_id(now: int) -> bytes:
    return from_parts(now // 1000, os.urandom(10)).bytes


def _posts_about(db: Connection, job_id: bytes, endpoints: list[_Endpoint], now: int) -> Iterator[Row]:
    row = db.row(SQL["finished_job"], (job_id,))
    assert row is not None
    kind, state, tenant, options = row[1], row[3], row[7], row[-1]
    own = _own_endpoint(read(options))
    body: str | None = None
    for endpoint in endpoints if own is None else [own]:
        if endpoint.wants(kind, state):
            body = body or _body(row)
            yield _new_id(now), job_id, endpoint.name, endpoint.url, f"job.{state}", body, now, tenant, endpoint.error


def _own_endpoint(options: Any) -> _Endpoint | None:
    """The endpoint of the job's own URL; malformed options, possible in jobs inserted by SQL, must not raise."""
    match options:
        case {"webhook": None}:
            return None
        case {"webhook": {"url": str(url), "states": list(states)}}:
            return _Endpoint(None, url, None, states)
        case {"webhook": {"url": str(url), **rest}} if rest.get("states") is None:
            return _Endpoint(None, url, None, None)
        case {"webhook": {"url": str(url)} | str(url)}:
            return _Endpoint(None, url, None, None, MALFORMED)
        case {"webhook": _}:
            return _Endpoint(None, "", None, None, MALFORMED)
    return None


def _body(row: Row) -> str:
    job = _FINISHED_JOB.decode(row)
    return to_json({**job, "errors": job["errors"] or [], "correlation_id": job["correlation_id"] or str(job["id"])})


def _brief(errors: str) -> list[dict[str, Any]]:
    """The errors without tracebacks, which only readers of the job itself may see."""
    listed = read_objects(errors) or []
    return [{name: value for name, value in error.items() if name != "traceback"} for error in listed]


# The job in a post: the columns of the statement `finished_job`, and after them the job's options.
_FINISHED_JOB: Columns[dict[str, Any]] = Columns(
    dict, id=ID, kind=PLAIN, queue=PLAIN, state=PLAIN, attempt=PLAIN, result=RAW, errors=Codec(decode=_brief),
    tenant=PLAIN, correlation_id=PLAIN, parent_id=ID, subject=RAW, created_at=TIME, started_at=TIME, finished_at=TIME,
)  # fmt: skip


def _disable(db: Connection, name: str, reason: str, url: str | None, now: int) -> bool:
    if not db.change(SQL["disable_webhook"], (name, reason, now, url)):
        return False
    db.run(SQL["give_up_posts"], (name, reason, now))
    return True
