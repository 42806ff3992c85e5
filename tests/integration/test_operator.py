"""What a principal may see and do, and the trail that each act leaves, on both stores."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from operating import audited, dead_letter, now, of_acme, operator, trail
from uuid_utils.compat import uuid7

from dutiful.core import ids
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
from dutiful.core.review.audit import AuditEvent, AuditOutcome
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.core.states import State
from dutiful.operator import Operator
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.control import PauseScope
from dutiful.store.dead_letters import BulkState, DeadLetterFilter, Review
from dutiful.store.queries import JobFilter
from dutiful.store.tokens import hash_of
from dutiful.store.webhooks import WebhookRecord
from suite.builders import enqueue_one, finish_one, state

HOUR = timedelta(hours=1)


async def test_an_act_is_on_record_when_it_is_asked_for_and_when_it_has_ended(store: Store) -> None:
    job_id = await enqueue_one(store, tenant="acme", now=now())

    await operator(store).jobs.cancel(job_id, "sent by hand")

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
    monkeypatch.setattr(ada.actor.client, "cancel", refuse)

    with pytest.raises(DataRefused):
        await ada.jobs.cancel(job_id)

    assert await audited(store, job_id) == ["job.cancel requested", "job.cancel failed"]


async def test_an_act_whose_answer_was_lost_is_not_called_a_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await dead_letter(store)
    ada = operator(store)
    review = store.dead_letters.review

    async def answer_lost(reviews: Sequence[Review], **more: Any) -> None:
        await review(reviews, **more)
        raise StoreUnavailable("the connection ended")

    monkeypatch.setattr(ada.actor.store.dead_letters, "review", answer_lost)

    with pytest.raises(StoreUnavailable):
        await ada.dead_letters.discard(job_id)

    assert await audited(store, job_id) == ["dead_letter.discard requested", "dead_letter.discard succeeded"]


async def test_an_act_that_was_done_does_not_fail_for_want_of_its_record(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await enqueue_one(store, now=now())
    ada = operator(store)
    append, calls = store.audit.append, 0

    async def once(events: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise StoreUnavailable("the database did not answer")
        await append(events)  # type: ignore[arg-type]

    monkeypatch.setattr(ada.actor.store.audit, "append", once)

    assert (await ada.jobs.cancel(job_id)).changed
    assert await audited(store, job_id) == ["job.cancel requested"]


Look = Callable[[Operator, UUID], Awaitable[object]]
LOOKS: list[Look] = [
    lambda o, i: o.jobs.get(i),
    lambda o, i: o.jobs.attempts(i),
    lambda o, i: o.jobs.phases(i),
    lambda o, i: o.jobs.dependencies(i),
    lambda o, i: o.jobs.posts(i),
    lambda o, i: o.jobs.explain(i),
    lambda o, i: o.dead_letters.get(i),
]
ACTS: list[Look] = [
    lambda o, i: o.jobs.cancel(i, "mine"),
    lambda o, i: o.jobs.retry(i, "mine"),
    lambda o, i: o.jobs.fail(i, "mine"),
    lambda o, i: o.dead_letters.acknowledge(i, "mine"),
    lambda o, i: o.dead_letters.reprocess(i, "mine"),
    lambda o, i: o.dead_letters.reprocess(i, "mine", {"n": 1}),
    lambda o, i: o.dead_letters.resolve(i, "mine"),
    lambda o, i: o.dead_letters.discard(i, "mine"),
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
    before = await store.dead_letters.find(dead)

    for theirs in (waiting, dead):
        for ask in (*LOOKS, *ACTS):
            never_was = uuid7()
            answer_for_theirs = await _refused(ask(ann, theirs))
            assert answer_for_theirs.replace(ids.public(theirs), "ID") == (await _refused(ask(ann, never_was))).replace(
                ids.public(never_was), "ID"
            )

    assert await state(store, waiting) is State.READY
    assert await store.dead_letters.find(dead) == before
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
    await operator(store, tenant="globex").bulk.start(ReviewAct.DISCARD, DeadLetterFilter())
    ann = of_acme(store)

    assert {job.id for job in await ann.jobs.search(JobFilter())} == {own, dead}
    assert [(q.queue, q.ready) for q in await ann.queues.all() if q.ready] == [("default", 1)]
    assert (await ann.queues.stats(HOUR)).live["ready"] == 1
    assert [letter.id for letter in await ann.dead_letters.search(DeadLetterFilter())] == [dead]
    assert await ann.dead_letters.count(DeadLetterFilter()) == 1
    assert (await ann.dead_letters.counts(DeadLetterFilter())).total == 1
    assert [group.count for group in await ann.dead_letters.groups(DeadLetterFilter())] == [1]
    assert (await ann.bulk.preview(ReviewAct.DISCARD, DeadLetterFilter())).count == 1
    assert await ann.bulk.all() == []
    assert await ann.audit.search(AuditFilter()) == []
    assert len(await operator(store).audit.search(AuditFilter(tenant="globex"))) == 2
    for asks in (
        ann.jobs.search(JobFilter(tenant="globex")),
        ann.dead_letters.search(DeadLetterFilter(tenant="globex")),
    ):
        with pytest.raises(NotAllowed, match="acme"):
            await asks


@pytest.mark.req("W67")
async def test_another_tenants_bulk_run_can_be_neither_seen_nor_stepped_nor_stopped(store: Store) -> None:
    await dead_letter(store, tenant="globex")
    run = await operator(store, tenant="globex").bulk.start(ReviewAct.DISCARD, DeadLetterFilter())
    ann = of_acme(store)

    for ask in (ann.bulk.get(run.id), ann.bulk.step(run.id), ann.bulk.stop(run.id)):
        with pytest.raises(BulkRunNotFound):
            await ask

    after = await store.dead_letters.bulk_run(run.id)
    assert after is not None
    assert (after.state, after.done, after.cursor) == (BulkState.RUNNING, 0, None)


async def test_what_is_about_all_tenants_is_closed_to_a_tenants_principal(store: Store) -> None:
    ann = of_acme(store)
    looks = [
        ann.fleet.workers(),
        ann.fleet.pauses(),
        ann.schedules.all(),
        ann.webhooks.all(),
        ann.webhooks.posts(),
        ann.tokens.all(),
        ann.audit.verify(),
    ]
    acts = [
        ann.fleet.pause(PauseScope.QUEUE, "default"),
        ann.fleet.resume(PauseScope.QUEUE, "default"),
        ann.schedules.enable("nightly", False),
        ann.schedules.remove("nightly"),
        ann.webhooks.enable("all", False),
        ann.webhooks.remove("all"),
        ann.webhooks.redeliver(uuid7()),
        ann.tokens.create("ann", Role.VIEWER, "acme"),
        ann.tokens.revoke(uuid7()),
    ]

    for ask in (*looks, *acts):
        with pytest.raises(NotAllowed, match="all tenants"):
            await ask

    assert await store.control.pauses() == []
    assert await store.tokens.all() == []
    recorded = await trail(store)
    assert [event.outcome for event in recorded] == [AuditOutcome.REFUSED] * len(acts)


async def test_who_is_no_manager_may_look_and_not_act(store: Store) -> None:
    job_id = await enqueue_one(store, tenant="acme", now=now())
    staff = of_acme(store, Role.STAFF)

    assert (await staff.jobs.get(job_id)).id == job_id
    with pytest.raises(NotAllowed, match="needs manager or higher"):
        await staff.jobs.cancel(job_id)

    assert await state(store, job_id) is State.READY
    assert await audited(store, job_id) == ["job.cancel refused"]


async def test_a_failed_job_that_is_retried_is_reprocessed(store: Store) -> None:
    job_id = await dead_letter(store)
    ada = operator(store)

    first = await ada.jobs.retry(job_id, "the server is back")
    again = await ada.jobs.retry(job_id)

    assert (first.made, again.made, again.job_id) == (True, False, first.job_id)
    letter = await store.dead_letters.find(job_id)
    assert letter is not None
    assert (letter.status, letter.new_job_id) == (ReviewState.REPROCESSING, first.job_id)


async def test_a_failed_job_whose_new_one_was_cancelled_never_has_two_in_its_place(store: Store) -> None:
    job_id, ada = await dead_letter(store), operator(store)
    first = await ada.dead_letters.reprocess(job_id)
    await ada.jobs.cancel(first.new_job_id)

    second = await ada.jobs.retry(job_id)  # before the services have seen the end of the first

    assert second.made
    await store.dead_letters.resolve_reprocessed(10)
    with pytest.raises(IllegalTransition, match="reprocessing"):
        await ada.dead_letters.reprocess(job_id)
    assert [job.id for job in await store.queries.jobs(JobFilter(state=State.READY))] == [second.job_id]


async def test_a_retry_makes_nothing_while_the_new_job_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, ada = await dead_letter(store), operator(store)
    new_job_id = (await ada.dead_letters.reprocess(job_id)).new_job_id
    append = store.audit.append

    async def cancelled_meanwhile(events: Sequence[AuditEvent]) -> None:
        monkeypatch.setattr(ada.actor.store.audit, "append", append)
        await store.control.cancel(new_job_id, "no use")
        await append(events)

    monkeypatch.setattr(ada.actor.store.audit, "append", cancelled_meanwhile)

    with pytest.raises(IllegalTransition, match="try again"):
        await ada.jobs.retry(job_id)

    assert list(await store.queries.jobs(JobFilter(state=State.READY))) == []


@pytest.mark.parametrize("decision", ["discard", "resolve"])
async def test_a_decision_in_review_is_not_overridden_by_a_retry(store: Store, decision: str) -> None:
    job_id = await dead_letter(store)
    closed = await getattr(operator(store, "bob").dead_letters, decision)(job_id, "paid by hand")

    with pytest.raises(IllegalTransition, match=r"by bob: paid by hand; .* enqueue a new job"):
        await operator(store).jobs.retry(job_id)

    assert await store.dead_letters.find(job_id) == closed
    assert (await audited(store, job_id))[2:] == ["job.retry refused"]


async def test_a_viewer_neither_retries_what_is_under_way_nor_steps_a_run(store: Store) -> None:
    job_id = await dead_letter(store)
    ada, viewer = operator(store), operator(store, "vic", role=Role.VIEWER)
    await ada.dead_letters.reprocess(job_id)
    await dead_letter(store, queue="other")
    run = await ada.bulk.start(ReviewAct.DISCARD, DeadLetterFilter())

    for ask in (viewer.jobs.retry(job_id), viewer.bulk.step(run.id)):
        with pytest.raises(NotAllowed, match="needs manager"):
            await ask

    assert (await audited(store, job_id))[2:] == ["job.retry refused"]
    assert (await ada.bulk.get(run.id)).done == 0


async def test_an_act_that_found_nothing_to_act_on_has_not_succeeded(store: Store) -> None:
    ada = operator(store)
    ended = await finish_one(store, now=now())

    assert not await ada.schedules.enable("nightly", False)
    assert not await ada.schedules.remove("nightly")
    assert not await ada.webhooks.enable("all", True)
    assert not await ada.webhooks.remove("all")
    assert not await ada.webhooks.redeliver(uuid7())
    assert not await ada.tokens.revoke(uuid7())
    assert not (await ada.jobs.cancel(ended)).changed

    assert [event.outcome.value for event in await trail(store)] == ["requested", "failed"] * 7


@pytest.mark.req("W67")
async def test_a_tenant_learns_nothing_of_fleetwide_webhooks_and_pauses(store: Store) -> None:
    secret = "https://hooks.example.com/services/T000/B000"
    await store.webhooks.put([WebhookRecord(name="chat", url=secret, states=["completed"])])
    done = await finish_one(store, now=now(), tenant="acme")
    waiting = await enqueue_one(store, tenant="acme", now=now())
    await operator(store, "root").fleet.pause(PauseScope.QUEUE, "default", "globex is under attack")
    ann = of_acme(store)

    (post,) = await ann.jobs.posts(done)
    why = await ann.jobs.explain(waiting)

    assert (post.webhook, post.url) == ("chat", "https://hooks.example.com/")
    assert (why.sentence, why.remedy) == ("waits because its queue 'default' is paused", None)
    assert (await operator(store).jobs.posts(done))[0].url == secret
    assert "by root: globex is under attack" in (await operator(store).jobs.explain(waiting)).sentence


@pytest.mark.req("W53")
async def test_of_a_tokens_secret_only_a_hash_is_kept(store: Store) -> None:
    ada = operator(store)

    token, secret = await ada.tokens.create("ann", Role.MANAGER, "acme", timedelta(days=90))

    assert secret.startswith("dtf_")
    assert len(secret) == 47
    assert await store.tokens.find(hash_of(secret)) == token
    assert await store.tokens.find(secret) is None
    assert secret not in msgspec.json.encode([await trail(store), await ada.tokens.all()]).decode()
    assert await ada.tokens.revoke(token.id)
    assert not await ada.tokens.revoke(token.id)
    assert [f"{event.action} {event.outcome}" for event in await trail(store)][:2] == [
        "token.create requested",
        "token.create succeeded",
    ]


async def test_a_token_cannot_have_ended_before_it_begins(store: Store) -> None:
    with pytest.raises(UsageError, match="a time to come"):
        await operator(store).tokens.create("ann", Role.VIEWER, None, now() - HOUR)

    assert await store.tokens.all() == []


async def test_only_an_administrator_makes_tokens(store: Store) -> None:
    manager = operator(store, role=Role.MANAGER)

    for ask in (manager.tokens.create("me", Role.ADMIN), manager.tokens.all()):
        with pytest.raises(DutifulError, match="needs admin"):
            await ask
