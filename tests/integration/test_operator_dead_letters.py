"""Dead letters, as people review them one by one, on both stores."""

import asyncio
import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from operating import BROKEN, audited, dead_letter, now, operator, trail

from dutiful import Dutiful, Rules, Unique
from dutiful.core import ids
from dutiful.core.errors import IllegalTransition, PayloadInvalid, UniqueConflict
from dutiful.core.job import JobRecord, OnConflict, Scope
from dutiful.core.json import read_object
from dutiful.core.outcome import Failed
from dutiful.core.review.state import ReviewState
from dutiful.core.states import State
from dutiful.maintenance.requeue import changed_fields, retry_key
from dutiful.operator import Operator
from dutiful.store import Store
from dutiful.store.dead_letters import DeadLetter
from dutiful.store.queries import JobFilter
from suite.builders import claim, enqueue_one, settle, state

KEYED = '{"unique": "welcome-7", "unique_field": "key", "webhook": null}'


async def found(store: Store, job_id: UUID) -> JobRecord:
    record = await store.queries.job(job_id)
    assert record is not None
    return record


async def letter_of(store: Store, job_id: UUID) -> DeadLetter:
    letter = await store.dead_letters.find(job_id)
    assert letter is not None
    return letter


@pytest.mark.req("W43", "W44", "W45", "W46", "W66", "L89", "L102")
async def test_a_reprocessed_job_differs_from_the_dead_one_by_its_key_only(store: Store) -> None:
    job_id = await dead_letter(
        store,
        tenant="acme",
        queue="mail",
        priority=7,
        max_attempts=3,
        correlation_id="order-1",
        subject='{"order": 1}',
        payload='{"key": "welcome-7", "to": "ada", "n": 1.50}',
        options=KEYED,
    )
    before, old = await letter_of(store, job_id), await found(store, job_id)

    made = await operator(store).dead_letters.reprocess(job_id, "the mail server is back")

    new, after = await found(store, made.new_job_id), await letter_of(store, job_id)
    key = made.new_unique_key
    assert key is not None
    assert re.fullmatch(r"welcome-7_retry_\d{10}\.\d{3}", key)
    assert new.payload == {**old.payload, "key": key}
    assert new.options == {"unique": key, "unique_first": "welcome-7", "unique_field": "key", "webhook": None}
    for same in ("kind", "queue", "priority", "max_attempts", "tenant", "correlation_id", "subject", "parent_id"):
        assert getattr(new, same) == getattr(old, same), same
    assert (new.state, new.retry_of, new.created_by) == (State.READY, job_id, "ada")
    # Of the dead letter only the review has changed.
    assert (after.status, after.new_job_id) == (ReviewState.REPROCESSING, new.id)
    assert (after.reviewed_by, after.notes) == ("ada", "the mail server is back")
    for kept in ("payload", "errors", "history", "unique_key", "died_at", "created_at", "attempt", "message"):
        assert getattr(after, kept) == getattr(before, kept), kept


@pytest.mark.req("W47", "W48", "W66")
async def test_reprocessing_is_on_record_when_it_is_asked_for_and_once_the_new_job_exists(store: Store) -> None:
    job_id = await dead_letter(store, tenant="acme")

    made = await operator(store).dead_letters.reprocess(job_id, "back")

    asked, done = await trail(store, target=ids.public(job_id))
    assert [asked.outcome, done.outcome] == ["requested", "succeeded"]
    assert (done.action, done.tenant, done.reason) == ("dead_letter.reprocess", "acme", "back")
    assert (done.before, done.act) == ({"status": "pending_review"}, asked.act)
    assert done.after == {"status": "reprocessing", "new_job": ids.public(made.new_job_id)}


@pytest.mark.req("W46", "W49")
@pytest.mark.parametrize("first", ["reprocess", "resolve", "discard"])
async def test_a_second_decision_is_refused_and_changes_nothing(store: Store, first: str) -> None:
    job_id = await dead_letter(store)
    ada = operator(store)
    await getattr(ada.dead_letters, first)(job_id, "mine")
    decided = await letter_of(store, job_id)

    for second in ("reprocess", "resolve", "discard", "acknowledge"):
        with pytest.raises(IllegalTransition, match="closed"):
            await getattr(ada.dead_letters, second)(job_id, "no, mine")

    assert await letter_of(store, job_id) == decided
    assert len(await store_jobs(store)) == (2 if first == "reprocess" else 1)
    assert (await audited(store, job_id))[2:] == [
        f"dead_letter.{act} refused" for act in ("reprocess", "resolve", "discard", "acknowledge")
    ]


async def store_jobs(store: Store) -> list[JobRecord]:
    return list(await store.queries.jobs(JobFilter(limit=100)))


async def test_an_acknowledged_one_stays_open(store: Store) -> None:
    job_id = await dead_letter(store)
    ada = operator(store)

    seen = await ada.dead_letters.acknowledge(job_id, "looking")
    closed = await ada.dead_letters.discard(job_id, "a duplicate")

    assert (seen.status, seen.notes) == (ReviewState.ACKNOWLEDGED, "looking")
    assert (closed.status, closed.notes, closed.reviewed_by) == (ReviewState.DISCARDED, "a duplicate", "ada")


@pytest.mark.req("W46")
async def test_of_many_who_reprocess_at_once_one_makes_a_job(store: Store) -> None:
    job_id = await dead_letter(store, options='{"unique": "k"}')

    answers = await asyncio.gather(
        *(operator(store, f"p{n}").dead_letters.reprocess(job_id, f"by {n}") for n in range(8)), return_exceptions=True
    )

    (made,) = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert all(isinstance(answer, IllegalTransition) for answer in answers if answer is not made)
    assert {job.id for job in await store_jobs(store)} == {job_id, made.new_job_id}
    outcomes = Counter(event.outcome.value for event in await trail(store))
    # Who comes when it is decided is refused before the act begins, and leaves that one event.
    assert (outcomes["succeeded"], outcomes["refused"]) == (1, 7) and 1 <= outcomes["requested"] <= 8


async def test_a_reprocessed_job_that_dies_has_a_dead_letter_of_its_own(store: Store) -> None:
    job_id = await dead_letter(store, options='{"unique": "k"}')
    ada = operator(store)
    first = await ada.dead_letters.reprocess(job_id)
    (claimed,) = await claim(store, now=now())
    await settle(store, claimed, Failed(BROKEN, final=True), now=now())
    assert await store.dead_letters.resolve_reprocessed(10) == 1

    second = await ada.dead_letters.reprocess(first.new_job_id)

    assert (await letter_of(store, job_id)).status is ReviewState.RESOLVED
    assert second.new_unique_key is not None
    assert second.new_unique_key.startswith(f"{first.new_unique_key}_retry_")


# --- an edited payload

RULES = Rules(
    required={"n": int},
    tenant="tenant_id",
    correlation_id="correlation_id",
    unique=Unique("idempotency_key", scope=Scope.FOREVER, on_conflict=OnConflict.REJECT, across_kinds=True),
)
PAYLOAD = {"tenant_id": 7, "correlation_id": "c-1", "idempotency_key": "k", "n": 1}


async def fetched(app: Dutiful) -> tuple[Operator, UUID]:
    """A dead letter of a kind with rules, and an operator who knows the kind."""
    app.category("ingestion", RULES)

    @app.job(category="ingestion")
    async def fetch(n: int) -> None: ...

    await app.enqueue("fetch", PAYLOAD)
    client = await app.client()
    (claimed,) = await claim(client.store, now=now(), kinds=["fetch"])
    await settle(client.store, claimed, Failed(BROKEN, final=True), now=now())
    return Operator(client, "ada", app.kinds), claimed.job_id


@pytest.mark.req("W25", "W45", "W46")
async def test_the_new_key_stands_where_the_rules_take_it_from(app: Dutiful) -> None:
    ada, job_id = await fetched(app)

    made = await ada.dead_letters.reprocess(job_id)

    new = await ada.jobs.get(made.new_job_id)
    assert new.payload == {**PAYLOAD, "idempotency_key": made.new_unique_key}
    assert (new.tenant, new.correlation_id) == ("7", "c-1")
    # It is held as the kind holds its keys: for good, and among all kinds of the tenant.
    with pytest.raises(UniqueConflict):
        await app.enqueue("fetch", new.payload)


async def test_an_edited_payload_is_checked_and_its_values_stay_out_of_the_trail(app: Dutiful) -> None:
    ada, job_id = await fetched(app)
    store = (await app.client()).store

    for wrong, field in (
        ({**PAYLOAD, "n": "many"}, "n"),
        ({**PAYLOAD, "tenant_id": 8}, "tenant"),
        ({**PAYLOAD, "password": "hunter2"}, "password"),
    ):
        with pytest.raises(PayloadInvalid, match=field):
            await ada.dead_letters.reprocess(job_id, "fixed", wrong)
    made = await ada.dead_letters.reprocess(job_id, "fixed", {**PAYLOAD, "n": 424242})

    new, letter = await ada.jobs.get(made.new_job_id), await ada.dead_letters.get(job_id)
    assert new.payload == {**PAYLOAD, "n": 424242, "idempotency_key": made.new_unique_key}
    assert letter.payload == PAYLOAD
    events = await trail(store, target=ids.public(job_id))
    assert [event.outcome.value for event in events] == ["refused"] * 3 + ["requested", "succeeded"]
    assert events[-1].after["changed"] == ["payload.idempotency_key", "payload.n"]
    assert "424242" not in msgspec.json.encode(events).decode()
    assert "hunter2" not in msgspec.json.encode(events).decode()


async def test_an_edited_payload_of_an_unknown_kind_is_refused_because_it_cannot_be_checked(store: Store) -> None:
    job_id = await dead_letter(store, payload='{"n": 1}')

    for edited in ({"n": 2}, [1]):
        with pytest.raises(PayloadInvalid):
            await operator(store).dead_letters.reprocess(job_id, None, edited)  # type: ignore[arg-type]

    assert await audited(store, job_id) == ["dead_letter.reprocess refused"] * 2
    assert (await letter_of(store, job_id)).status is ReviewState.PENDING_REVIEW


async def test_a_secret_in_an_edited_payload_is_refused_even_where_no_rules_forbid_it(app: Dutiful) -> None:
    @app.job
    async def greet(n: int, token: str = "", extra: dict[str, Any] | None = None) -> None: ...

    store = (await app.client()).store
    job_id = await dead_letter(store, kind="greet", payload='{"n": 1, "token": "kept"}')
    ada = Operator(await app.client(), "ada", app.kinds)

    for padding in ("", "x" * 50_000):
        with pytest.raises(PayloadInvalid, match="password"):
            await ada.dead_letters.reprocess(
                job_id, None, {"n": 2, "token": "kept", "extra": {"note": padding, "password": "hunter2"}}
            )
    made = await ada.dead_letters.reprocess(job_id, None, {"n": 2, "token": "kept"})

    assert (await ada.jobs.get(made.new_job_id)).payload == {"n": 2, "token": "kept"}


async def test_one_of_which_nothing_can_be_read_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, ada = await dead_letter(store), operator(store)
    unreadable = msgspec.structs.replace(
        await letter_of(store, job_id), job=read_object("nonsense") or {}, payload=None
    )

    async def as_read(_: UUID) -> DeadLetter:
        return unreadable

    monkeypatch.setattr(ada.actor.store.dead_letters, "find", as_read)

    with pytest.raises(PayloadInvalid, match="cannot be read"):
        await ada.dead_letters.reprocess(job_id)
    assert await audited(store, job_id) == ["dead_letter.reprocess refused"]


async def test_one_that_died_before_its_kind_had_rules_is_held_by_them_now(app: Dutiful) -> None:
    @app.job(rules=Rules(required=["key", "firm"], unique=Unique("key", scope=Scope.FOREVER)))
    async def pay(key: str) -> None: ...

    client = await app.client()
    job_id = await dead_letter(client.store, kind="pay", payload='{"key": "k1"}')
    await app.enqueue("pay", {"key": "k1", "firm": "f"})
    ada = Operator(client, "ada", app.kinds)

    with pytest.raises(PayloadInvalid, match="firm is missing"):
        await ada.dead_letters.reprocess(job_id)
    with pytest.raises(PayloadInvalid, match=r"key .* is held by another job"):
        await ada.dead_letters.reprocess(job_id, None, {"key": "k1", "firm": "f"})
    made = await ada.dead_letters.reprocess(job_id, None, {"key": "k2", "firm": "f"})

    assert made.new_unique_key == "k2"
    outcomes = [event.outcome.value for event in await trail(client.store, target=ids.public(job_id))]
    assert [one for one in outcomes if one != "requested"] == ["refused", "refused", "succeeded"]


async def test_notes_stay_with_their_author(store: Store) -> None:
    job_id = await dead_letter(store)
    await operator(store, "ada").dead_letters.acknowledge(job_id, "legal hold")

    closed = await operator(store, "bob").dead_letters.discard(job_id)

    assert (closed.reviewed_by, closed.notes) == ("bob", "ada: legal hold")


# --- small parts


def test_a_key_gets_the_time_to_the_millisecond_and_never_the_same_twice() -> None:
    at = datetime(2026, 1, 1, microsecond=123_456, tzinfo=UTC)

    first = retry_key("k", "k", at)

    assert first == "k_retry_1767225600.123"
    assert retry_key("k", "k", at, {first}) == "k_retry_1767225600.124"


@pytest.mark.parametrize("key", ["order_retry_5.123", "order_retry_1767225600.123"])
async def test_a_key_that_only_looks_like_that_of_a_retry_is_kept_whole(store: Store, key: str) -> None:
    other = await enqueue_one(store, queue="other", unique=Unique("order", Scope.FOREVER))
    job_id = await dead_letter(store, unique=Unique(key, Scope.FOREVER))

    again = await operator(store).dead_letters.reprocess(job_id)

    assert again.new_unique_key is not None and again.new_unique_key.startswith(f"{key}_retry_")
    assert await state(store, again.new_job_id) is State.READY, "the key order is another job's"
    assert await state(store, other) is State.READY


def test_a_key_that_has_been_tried_many_times_over_stays_within_its_limit() -> None:
    first, at = "k" * 400, datetime(2026, 1, 1, tzinfo=UTC)
    key = first

    for _ in range(20):
        key = retry_key(key, first, at)

    assert len(key) <= 500
    assert key.startswith("k" * 400 + "_retry_")


def test_long_keys_that_begin_alike_are_still_two() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    one, other = "k" * 490 + "1", "k" * 490 + "2"
    first = retry_key(one, one, at)

    assert retry_key(other, other, at, {first}) != first


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ({"a": 1, "b": {"c": [1], "d": 2}}, {"a": 1, "b": {"c": [1, 2], "d": 2}}, ["payload.b.c"]),
        ({"a": 1}, {"b": 1}, ["payload.a", "payload.b"]),
        ({"a": 1}, {"a": True}, ["payload.a"]),
        ({"a": None}, {"a": None}, []),
    ],
)
def test_where_two_payloads_differ_is_shown_by_path(old: Any, new: Any, changed: list[str]) -> None:
    assert changed_fields(old, new) == changed


LIMIT = 300  # bytes


@pytest.mark.req("W10", "W46", "W68")
@pytest.mark.parametrize("edited", [False, True])
async def test_a_payload_of_full_size_is_reprocessed_time_and_again(app: Dutiful, edited: bool) -> None:
    app.category("full", RULES.plus(Rules(limit=LIMIT)))

    @app.job(category="full")
    async def fetch(n: int, name: str) -> None: ...

    await app.migrate()  # stores the rules
    payload = PAYLOAD | {"name": ""}
    payload["name"] = "x" * (LIMIT - len(msgspec.json.encode(payload)))
    job_id = (await app.enqueue("fetch", payload)).id
    client = await app.client()
    ada = Operator(client, "ada", app.kinds)
    for _ in range(2):
        (claimed,) = await claim(client.store, now=now(), kinds=["fetch"])
        await settle(client.store, claimed, Failed(BROKEN, final=True), now=now())

        made = await ada.dead_letters.reprocess(job_id, payload=payload if edited else None)

        new = await found(client.store, made.new_job_id)
        assert new.payload == payload | {"idempotency_key": made.new_unique_key}
        job_id = made.new_job_id
    too_large = payload | {"name": str(payload["name"]) + "x"}
    (claimed,) = await claim(client.store, now=now(), kinds=["fetch"])
    await settle(client.store, claimed, Failed(BROKEN, final=True), now=now())
    with pytest.raises(PayloadInvalid, match="payload has 301 bytes, more than the limit of 300"):
        await ada.dead_letters.reprocess(job_id, payload=too_large)
