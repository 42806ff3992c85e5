"""Webhook messages: written with a job's end or an alert's change, taken to be posted, and settled."""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.ids import from_parts
from dutiful.core.readable import read, read_object, read_objects
from dutiful.core.transitions import State
from dutiful.outbox import MALFORMED, PostResult, PostState, WebhookPost, WebhookRecord
from dutiful.stores.sqlite.codec import (
    maybe_micros,
    maybe_moment,
    maybe_uuid,
    moment,
    span,
    to_json,
    uuid,
)
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL


class Hook(msgspec.Struct, frozen=True):
    """Who hears of an end: an endpoint, or (without a name) the URL that a job was given."""

    name: str | None
    url: str
    kinds: Sequence[str] | None
    states: Sequence[str] | None
    error: str | None = None  # why nobody can be told

    def hears(self, kind: str, state: str) -> bool:
        return (self.kinds is None or kind in self.kinds) and (self.states is None or state in self.states)


def announce(
    db: Connection, ended: Sequence[bytes], naming: Sequence[bytes], now: int, state: State | None = None
) -> None:
    """Write the messages about jobs that ended in this transaction; `naming`: those that may name a URL of their own.

    One probe for all of them while nobody hears of it; `state` is that of all, if they ended in one.
    """
    hooks = [Hook(name, url, read(kinds), read(states)) for name, url, kinds, states in db.rows(SQL["hooks"])]
    if state is not None:
        hooks = [hook for hook in hooks if hook.states is None or state in hook.states]
    posts = [post for job_id in (ended if hooks else naming) for post in _posts(db, job_id, hooks, now)]
    if posts:
        db.many(SQL["insert_post"], posts)


def announce_alert(db: Connection, event: str, data: Mapping[str, Any], now: int) -> None:
    told = to_json(data)
    for name, url in db.rows(SQL["alert_hooks"]):
        id_ = from_parts(now // 1000, os.urandom(10)).bytes
        db.run(SQL["insert_post"], (id_, None, name, url, event, told, now, None, None))


def _posts(db: Connection, job_id: bytes, hooks: list[Hook], now: int) -> Iterator[Row]:
    row = db.row(SQL["ending"], (job_id,))
    assert row is not None
    kind, state, tenant, options = row[1], row[3], row[7], row[-1]
    own = _own(read(options))
    heard_by = hooks if own is None else [own]
    told: str | None = None
    for hook in heard_by:
        if hook.hears(kind, state):
            told = told or _told(row)
            id_ = from_parts(now // 1000, os.urandom(10)).bytes
            yield id_, job_id, hook.name, hook.url, f"job.{state}", told, now, tenant, hook.error


def _own(options: Any) -> Hook | None:
    """Whoever inserts jobs by SQL can write anything there, and it must not keep a job from its end."""
    match options:
        case {"webhook": None}:
            return None
        case {"webhook": {"url": str(url), "states": list(states)}}:
            return Hook(None, url, None, states)
        case {"webhook": {"url": str(url), **rest}} if rest.get("states") is None:
            return Hook(None, url, None, None)
        case {"webhook": {"url": str(url)} | str(url)}:
            return Hook(None, url, None, None, MALFORMED)
        case {"webhook": _}:
            return Hook(None, "", None, None, MALFORMED)
    return None


def _told(row: Row) -> str:
    """What a message says of a job. Errors without their tracebacks, which are for those who may see the job itself."""
    (id_, kind, queue, state, attempt, result, errors, tenant, correlation_id, parent_id, subject, created_at,
     claimed_at, finished_at, _) = row  # fmt: skip
    brief = [
        {name: value for name, value in error.items() if name != "traceback"} for error in read_objects(errors) or []
    ]
    job_id = uuid(id_)
    return to_json(
        {
            "id": job_id,
            "kind": kind,
            "queue": queue,
            "state": state,
            "attempt": attempt,
            "result": None if result is None else msgspec.Raw(result.encode()),
            "errors": brief,
            "tenant": tenant,
            "correlation_id": correlation_id or str(job_id),
            "parent_id": maybe_uuid(parent_id),
            "subject": None if subject is None else msgspec.Raw(subject.encode()),
            "created_at": moment(created_at),
            "started_at": maybe_moment(claimed_at),
            "finished_at": moment(finished_at),
        }
    )


def put_webhooks(db: Connection, webhooks: Sequence[WebhookRecord]) -> None:
    db.many(
        SQL["put_webhook"],
        [
            (one.name, one.url, None if one.kinds is None else to_json(one.kinds), to_json(one.states),
             int(one.alerts), int(one.enabled), maybe_micros(one.disabled_at), one.reason)
            for one in webhooks
        ],
    )  # fmt: skip


def take_posts(
    db: Connection,
    limit: int,
    hold: timedelta,
    avoid: Sequence[str],
    names: Sequence[str] | None,
    retries: int | None,
    now: int,
) -> list[WebhookPost]:
    held_until = now + span(hold)
    which = {"now": now, "avoid": to_json(list(avoid)), "names": None if names is None else to_json(list(names))}
    first = db.rows(SQL["due_posts"], {**which, "again": 0, "limit": limit})
    again = db.rows(SQL["due_posts"], {**which, "again": 1, "limit": limit if retries is None else min(limit, retries)})
    due = sorted([*first, *again])[:limit]
    taken = (db.row(SQL["take_post"], (id_, now, held_until)) for _, id_ in due)
    return [_post(row) for row in taken if row is not None]


def settle_post(db: Connection, result: PostResult, now: int) -> bool:
    pending = result.state is PostState.PENDING
    changed = db.change(
        SQL["settle_post"],
        {
            "id": result.id.bytes,
            "attempts": result.attempts,
            "state": result.state.value,
            "next_at": now + span(result.delay or timedelta(0)) if pending else None,
            "ended_at": None if pending else now,
            "now": now,
            "status": result.status,
            "error": result.error,
        },
    )
    # Asked again because a reply was lost, it has been written already.
    return bool(changed) or db.value(SQL["post_state"], (result.id.bytes, result.attempts)) == result.state.value


def disable_webhook(db: Connection, name: str, reason: str, url: str | None, now: int) -> bool:
    if not db.change(SQL["disable_webhook"], (name, reason, now, url)):
        return False
    db.run(SQL["give_up_posts"], (name, reason, now))
    return True


def enable_webhook(db: Connection, name: str) -> bool:
    return bool(db.change(SQL["enable_webhook"], (name,)))


def remove_webhook(db: Connection, name: str, now: int) -> bool:
    disable_webhook(db, name, "the webhook was removed", None, now)
    return bool(db.change(SQL["delete_webhook"], (name,)))


def post_again(db: Connection, post_id: UUID, now: int) -> bool:
    return bool(db.change(SQL["post_again"], (post_id.bytes, now)))


def webhooks(db: Connection) -> list[WebhookRecord]:
    return [
        WebhookRecord(
            name=name, url=url, kinds=read(kinds), states=read(states), alerts=bool(alerts), enabled=bool(enabled),
            disabled_at=maybe_moment(disabled_at), reason=reason,
        )
        for name, url, kinds, states, alerts, enabled, disabled_at, reason in db.rows(SQL["webhooks"])
    ]  # fmt: skip


def posts(db: Connection, job_id: UUID | None, state: PostState | None, limit: int) -> list[WebhookPost]:
    """Newest first: an id begins with the time of the job's end."""
    tests: list[str] = []
    bindings: dict[str, Any] = {"limit": limit}
    if job_id is not None:
        tests.append("job_id = :job_id")
        bindings["job_id"] = job_id.bytes
    if state is not None:
        tests.append("state = :state")
        bindings["state"] = state.value
    where = f" WHERE {' AND '.join(tests)}" if tests else ""
    return [_post(row) for row in db.rows(f"{SQL['select_posts']}{where} ORDER BY id DESC LIMIT :limit", bindings)]


def _post(row: Row) -> WebhookPost:
    (id_, job_id, webhook, url, event, data, state, attempts, created_at, next_at, ended_at, updated_at, status, error,
     tenant) = row  # fmt: skip
    return WebhookPost(
        id=uuid(id_),
        job_id=maybe_uuid(job_id),
        webhook=webhook,
        url=url,
        event=event,
        data=read_object(data) or {},
        state=PostState(state),
        attempts=attempts,
        created_at=moment(created_at),
        next_at=maybe_moment(next_at),
        ended_at=maybe_moment(ended_at),
        updated_at=moment(updated_at),
        status=status,
        error=error,
        tenant=tenant,
    )
