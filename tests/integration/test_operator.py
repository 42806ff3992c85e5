"""What a principal may see and do, and the trail that each act leaves, on both stores."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from operating import dead_letter, now, of_acme, operator, told, trail
from uuid_utils.compat import uuid7

from dutiful.access import hash_of
from dutiful.acting import PauseScope
from dutiful.auditing import AuditFilter
from dutiful.core import ids
from dutiful.core.audit import AuditEvent, AuditOutcome
from dutiful.core.errors import (
    BulkRunNotFound,
    DataRefused,
    DeadLetterNotFound,
    DutifulError,
    IllegalTransition,
    JobNotFound,
    NotAllowed,
    StoreUnavailable,
    UsageError,
)
from dutiful.core.principal import Role
from dutiful.core.review import ReviewAct, ReviewState
from dutiful.core.transitions import State
from dutiful.operator import Operator
from dutiful.outbox import WebhookRecord
from dutiful.reading import JobFilter
from dutiful.reviewing import BulkState, DeadLetterFilter, Review
from dutiful.store import Store
from dutiful.testing.store_suite.builders import enqueue_one, finish_one, state

HOUR = timedelta(hours=1)


async def test_an_act_is_on_record_when_it_is_asked_for_and_when_it_has_ended(store: Store) -> None:
    job_id = await enqueue_one(store, tenant="acme", now=now())

    await operator(store).cancel(job_id, "sent by hand")

    asked, done = await trail(store, target=ids.public(job_id))
    assert (asked.outcome, done.outcome) == (AuditOutcome.REQUESTED, AuditOutcome.SUCCEEDED)
    assert (done.action, done.principal, done.reason, done.tenant) == ("job.cancel", "ada", "sent by hand", "acme")
    assert (asked.act, asked.before) == (done.act, {"state": "ready"})
    assert done.after == {"state": "cancelled", "changed": True, "requested": False}


async def test_an_act_that_could_not_be_done_is_recorded_as_failed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise DataRefused("the database refused it")

    job_id = await enqueue_one(store, now=now())
    ada = operator(store)
    monkeypatch.setattr(ada._client, "cancel", refuse)

    with pytest.raises(DataRefused):
        await ada.cancel(job_id)

    assert await told(store, job_id) == ["job.cancel requested", "job.cancel failed"]


async def test_an_act_whose_answer_was_lost_is_not_called_a_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await dead_letter(store)
    ada = operator(store)
    review = store.review

    async def answer_lost(reviews: Sequence[Review], **more: Any) -> None:
        await review(reviews, **more)
        raise StoreUnavailable("the connection ended")

    monkeypatch.setattr(ada._store, "review", answer_lost)

    with pytest.raises(StoreUnavailable):
        await ada.discard(job_id)

    assert await told(store, job_id) == ["dead_letter.discard requested", "dead_letter.discard succeeded"]


async def test_an_act_that_was_done_does_not_fail_for_want_of_its_record(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await enqueue_one(store, now=now())
    ada = operator(store)
    append, calls = store.append_audit, 0

    async def once(events: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise StoreUnavailable("the database did not answer")
        await append(events)  # type: ignore[arg-type]

    monkeypatch.setattr(ada._store, "append_audit", once)

    assert (await ada.cancel(job_id)).changed
    assert await told(store, job_id) == ["job.cancel requested"]


Look = Callable[[Operator, UUID], Awaitable[object]]
LOOKS: list[Look] = [
    lambda o, i: o.job(i),
    lambda o, i: o.attempts(i),
    lambda o, i: o.phases(i),
    lambda o, i: o.needs(i),
    lambda o, i: o.posts_of(i),
    lambda o, i: o.explain(i),
    lambda o, i: o.dead_letter(i),
]
ACTS: list[Look] = [
    lambda o, i: o.cancel(i, "mine"),
    lambda o, i: o.retry(i, "mine"),
    lambda o, i: o.fail(i, "mine"),
    lambda o, i: o.acknowledge(i, "mine"),
    lambda o, i: o.reprocess(i, "mine"),
    lambda o, i: o.reprocess(i, "mine", {"n": 1}),
    lambda o, i: o.resolve(i, "mine"),
    lambda o, i: o.discard(i, "mine"),
]


async def _refused(attempt: Awaitable[object]) -> str:
    with pytest.raises((JobNotFound, DeadLetterNotFound)) as refused:
        await attempt
    return str(refused.value)


@pytest.mark.req("W67")
async def test_what_belongs_to_another_tenant_is_as_if_it_never_was(store: Store) -> None:
    waiting = await enqueue_one(store, tenant="globex", now=now())
    dead = await dead_letter(store, tenant="globex", queue="other", options='{"unique": "k"}')
    ann = of_acme(store)
    before = await store.dead_letter(dead)

    for theirs in (waiting, dead):
        for ask in (*LOOKS, *ACTS):
            never_was = uuid7()
            told_of_theirs = await _refused(ask(ann, theirs))
            assert told_of_theirs.replace(ids.public(theirs), "ID") == (await _refused(ask(ann, never_was))).replace(
                ids.public(never_was), "ID"
            )

    assert await state(store, waiting) is State.READY
    assert await store.dead_letter(dead) == before
    assert await trail(store, tenant="globex") == []
    tries = await trail(store, target=ids.public(dead))
    assert [event.outcome for event in tries] == [AuditOutcome.REFUSED] * len(ACTS)
    # Nothing of theirs went into our trail either.
    assert all(event.tenant == "acme" and event.before is None for event in tries)
    assert "SMTPError" not in msgspec.json.encode(tries).decode()


@pytest.mark.req("W67")
async def test_lists_and_counts_show_a_tenant_its_own_only(store: Store) -> None:
    own = await enqueue_one(store, tenant="acme", now=now())
    await enqueue_one(store, tenant="globex", now=now())
    await enqueue_one(store, now=now())
    dead = await dead_letter(store, tenant="acme", queue="other")
    await dead_letter(store, tenant="globex", queue="other")
    await operator(store, tenant="globex").start_bulk(ReviewAct.DISCARD, DeadLetterFilter())
    ann = of_acme(store)

    assert {job.id for job in await ann.jobs(JobFilter())} == {own, dead}
    assert [(q.queue, q.ready) for q in await ann.queues() if q.ready] == [("default", 1)]
    assert (await ann.stats(HOUR)).live["ready"] == 1
    assert [letter.id for letter in await ann.dead_letters(DeadLetterFilter())] == [dead]
    assert await ann.dead_letter_count(DeadLetterFilter()) == 1
    assert (await ann.dead_letter_counts(DeadLetterFilter())).total == 1
    assert [group.count for group in await ann.dead_letter_groups(DeadLetterFilter())] == [1]
    assert (await ann.preview(ReviewAct.DISCARD, DeadLetterFilter())).count == 1
    assert await ann.bulk_runs() == []
    assert await ann.audit_events(AuditFilter()) == []
    assert len(await operator(store).audit_events(AuditFilter(tenant="globex"))) == 2
    for asks in (ann.jobs(JobFilter(tenant="globex")), ann.dead_letters(DeadLetterFilter(tenant="globex"))):
        with pytest.raises(NotAllowed, match="acme"):
            await asks


@pytest.mark.req("W67")
async def test_another_tenants_bulk_run_can_be_neither_seen_nor_stepped_nor_stopped(store: Store) -> None:
    await dead_letter(store, tenant="globex")
    run = await operator(store, tenant="globex").start_bulk(ReviewAct.DISCARD, DeadLetterFilter())
    ann = of_acme(store)

    for ask in (ann.bulk_run(run.id), ann.step_bulk(run.id), ann.stop_bulk(run.id)):
        with pytest.raises(BulkRunNotFound):
            await ask

    after = await store.bulk_run(run.id)
    assert after is not None
    assert (after.state, after.done, after.cursor) == (BulkState.RUNNING, 0, None)


async def test_what_is_about_all_tenants_is_closed_to_a_tenants_principal(store: Store) -> None:
    ann = of_acme(store)
    looks = [
        ann.workers(),
        ann.pauses(),
        ann.schedules(),
        ann.webhooks(),
        ann.posts(),
        ann.tokens(),
        ann.verify_audit(),
    ]
    acts = [
        ann.pause(PauseScope.QUEUE, "default"),
        ann.resume(PauseScope.QUEUE, "default"),
        ann.enable_schedule("nightly", False),
        ann.remove_schedule("nightly"),
        ann.enable_webhook("all", False),
        ann.remove_webhook("all"),
        ann.redeliver(uuid7()),
        ann.create_token("ann", Role.VIEWER, "acme"),
        ann.revoke_token(uuid7()),
    ]

    for ask in (*looks, *acts):
        with pytest.raises(NotAllowed, match="all tenants"):
            await ask

    assert await store.pauses() == []
    assert await store.tokens() == []
    recorded = await trail(store)
    assert [event.outcome for event in recorded] == [AuditOutcome.REFUSED] * len(acts)


async def test_who_is_no_manager_may_look_and_not_act(store: Store) -> None:
    job_id = await enqueue_one(store, tenant="acme", now=now())
    staff = of_acme(store, Role.STAFF)

    assert (await staff.job(job_id)).id == job_id
    with pytest.raises(NotAllowed, match="needs manager or higher"):
        await staff.cancel(job_id)

    assert await state(store, job_id) is State.READY
    assert await told(store, job_id) == ["job.cancel refused"]


async def test_a_failed_job_that_is_retried_is_reprocessed(store: Store) -> None:
    job_id = await dead_letter(store)
    ada = operator(store)

    first = await ada.retry(job_id, "the server is back")
    again = await ada.retry(job_id)

    assert (first.made, again.made, again.job_id) == (True, False, first.job_id)
    letter = await store.dead_letter(job_id)
    assert letter is not None
    assert (letter.status, letter.new_job_id) == (ReviewState.REPROCESSING, first.job_id)


async def test_a_failed_job_whose_new_one_was_cancelled_never_has_two_in_its_place(store: Store) -> None:
    job_id, ada = await dead_letter(store), operator(store)
    first = await ada.reprocess(job_id)
    await ada.cancel(first.new_job_id)

    second = await ada.retry(job_id)  # before the services have seen the end of the first

    assert second.made
    await store.resolve_reprocessed(10)
    with pytest.raises(IllegalTransition, match="reprocessing"):
        await ada.reprocess(job_id)
    assert [job.id for job in await store.jobs(JobFilter(state=State.READY))] == [second.job_id]


async def test_a_retry_makes_nothing_while_the_new_job_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, ada = await dead_letter(store), operator(store)
    new_job_id = (await ada.reprocess(job_id)).new_job_id
    append = store.append_audit

    async def cancelled_meanwhile(events: Sequence[AuditEvent]) -> None:
        monkeypatch.setattr(ada._store, "append_audit", append)
        await store.cancel(new_job_id, "no use")
        await append(events)

    monkeypatch.setattr(ada._store, "append_audit", cancelled_meanwhile)

    with pytest.raises(IllegalTransition, match="try again"):
        await ada.retry(job_id)

    assert list(await store.jobs(JobFilter(state=State.READY))) == []


@pytest.mark.parametrize("decision", ["discard", "resolve"])
async def test_what_somebody_has_decided_is_not_retried_past_them(store: Store, decision: str) -> None:
    job_id = await dead_letter(store)
    closed = await getattr(operator(store, "bob"), decision)(job_id, "paid by hand")

    with pytest.raises(IllegalTransition, match=r"by bob: paid by hand; .* enqueue a new job"):
        await operator(store).retry(job_id)

    assert await store.dead_letter(job_id) == closed
    assert (await told(store, job_id))[2:] == ["job.retry refused"]


async def test_a_viewer_neither_retries_what_is_under_way_nor_steps_a_run(store: Store) -> None:
    job_id = await dead_letter(store)
    ada, viewer = operator(store), operator(store, "vic", role=Role.VIEWER)
    await ada.reprocess(job_id)
    await dead_letter(store, queue="other")
    run = await ada.start_bulk(ReviewAct.DISCARD, DeadLetterFilter())

    for ask in (viewer.retry(job_id), viewer.step_bulk(run.id)):
        with pytest.raises(NotAllowed, match="needs manager"):
            await ask

    assert (await told(store, job_id))[2:] == ["job.retry refused"]
    assert (await ada.bulk_run(run.id)).done == 0


async def test_an_act_that_found_nothing_to_act_on_has_not_succeeded(store: Store) -> None:
    ada = operator(store)
    ended = await finish_one(store, now=now())

    assert not await ada.enable_schedule("nightly", False)
    assert not await ada.remove_schedule("nightly")
    assert not await ada.enable_webhook("all", True)
    assert not await ada.remove_webhook("all")
    assert not await ada.redeliver(uuid7())
    assert not await ada.revoke_token(uuid7())
    assert not (await ada.cancel(ended)).changed

    assert [event.outcome.value for event in await trail(store)] == ["requested", "failed"] * 7


@pytest.mark.req("W67")
async def test_a_tenant_learns_nothing_of_the_houses_webhooks_and_pauses(store: Store) -> None:
    secret = "https://hooks.example.com/services/T000/B000"
    await store.put_webhooks([WebhookRecord(name="chat", url=secret, states=["completed"])])
    done = await finish_one(store, now=now(), tenant="acme")
    waiting = await enqueue_one(store, tenant="acme", now=now())
    await operator(store, "root").pause(PauseScope.QUEUE, "default", "globex is under attack")
    ann = of_acme(store)

    (post,) = await ann.posts_of(done)
    why = await ann.explain(waiting)

    assert (post.webhook, post.url) == ("chat", "https://hooks.example.com/")
    assert (why.sentence, why.remedy) == ("waits because its queue 'default' is paused", None)
    assert (await operator(store).posts_of(done))[0].url == secret
    assert "by root: globex is under attack" in (await operator(store).explain(waiting)).sentence


async def test_a_finished_job_that_is_retried_does_not_hold_its_old_key(store: Store) -> None:
    job_id = await finish_one(store, now=now(), options='{"unique": "k", "note": 1}')

    retried = await operator(store).retry(job_id)

    new = await store.find(retried.job_id)
    assert new is not None
    assert (new.retry_of, new.created_by) == (job_id, "ada")
    assert new.options == {"note": 1, "unique": f"retry of {job_id}"}


@pytest.mark.req("W53")
async def test_of_a_tokens_secret_only_a_hash_is_kept(store: Store) -> None:
    ada = operator(store)

    token, secret = await ada.create_token("ann", Role.MANAGER, "acme", timedelta(days=90))

    assert secret.startswith("dtf_")
    assert len(secret) == 47
    assert await store.token_of(hash_of(secret)) == token
    assert await store.token_of(secret) is None
    assert secret not in msgspec.json.encode([await trail(store), await ada.tokens()]).decode()
    assert await ada.revoke_token(token.id)
    assert not await ada.revoke_token(token.id)
    assert [f"{event.action} {event.outcome}" for event in await trail(store)][:2] == [
        "token.create requested",
        "token.create succeeded",
    ]


async def test_a_token_cannot_have_ended_before_it_begins(store: Store) -> None:
    with pytest.raises(UsageError, match="a time to come"):
        await operator(store).create_token("ann", Role.VIEWER, None, now() - HOUR)

    assert await store.tokens() == []


async def test_only_an_administrator_makes_tokens(store: Store) -> None:
    manager = operator(store, role=Role.MANAGER)

    for ask in (manager.create_token("me", Role.ADMIN), manager.tokens()):
        with pytest.raises(DutifulError, match="needs admin"):
            await ask
