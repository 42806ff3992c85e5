"""Text that is not UTF-8, which only SQL can have written: it is shown replaced, and stops nothing else."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import apsw
import msgspec
import pytest
from operating import dead_letter, operator, trail

from dutiful.core.errors import PayloadInvalid
from dutiful.maintenance.sealer import Sealer
from dutiful.payload.signature import Signature
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.store.metrics import AttemptStats
from dutiful.store.queries import JobFilter
from dutiful.stores.sqlite import SqliteStore
from suite.builders import ADA, KIND, T0, claim, enqueue_one, finish_one
from suite.webhooks import webhook

BAD = "CAST(x'61ff62' AS TEXT)"
BAD_JSON = "CAST(x'7b226e223a2261ff62227d' AS TEXT)"  # {"n":"a…b"}
SHOWN = "a\N{REPLACEMENT CHARACTER}b"


@pytest.fixture(params=["apsw", "sqlite3"])
def driver(request: pytest.FixtureRequest) -> Literal["apsw", "sqlite3"]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def store(migrated_path: Path, driver: Literal["apsw", "sqlite3"]) -> AsyncIterator[Store]:
    store = SqliteStore(migrated_path, driver=driver)
    await store.open()
    yield store
    await store.close()


def by_hand(store: Store, statement: str, *args: Any) -> None:
    """With the library that the store uses, because a second one would drop the locks of the first."""
    assert isinstance(store, SqliteStore)
    path = store.url.removeprefix("sqlite:///")
    if store.engine.driver == "apsw":
        with closing(apsw.Connection(path)) as database:
            database.execute(statement, args)
        return
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, args)


async def slip_in(store: Store) -> None:
    """Add an audit event by SQL, a copy of the first with another id."""
    (first, *_) = await trail(store)
    raw = first.id.bytes[:6] + bytes([0x7F]) + first.id.bytes[7:]
    by_hand(
        store,
        "INSERT INTO dutiful_audit_event (id, act, at, principal, origin, action, outcome) "
        f"SELECT ?, act, at, {BAD}, origin, action, outcome FROM dutiful_audit_event WHERE id = ?",
        raw,
        first.id.bytes,
    )


async def test_an_audit_event_that_is_not_utf8_stops_neither_the_list_nor_the_sealer_and_is_reported(
    store: Store,
) -> None:
    ada = operator(store)
    await ada.audit.set_retention(timedelta(days=30))
    await slip_in(store)

    assert SHOWN in {event.principal for event in await store.audit.search(AuditFilter())}
    assert len(await store.audit.unsealed(10)) == 3
    assert await Sealer(store.audit).seal_batch() == 3
    assert await store.audit.unsealed(10) == []
    found = await ada.audit.verify()
    assert found.broken is not None and "not UTF-8" in found.broken.problem


async def test_a_sealed_event_that_is_changed_to_it_is_reported(store: Store) -> None:
    ada = operator(store)
    await ada.audit.set_retention(timedelta(days=30), "as " + SHOWN)
    await Sealer(store.audit).seal_batch()
    assert (await ada.audit.verify()).broken is None

    by_hand(store, "DROP TRIGGER dutiful_audit_event_stays")
    by_hand(store, "UPDATE dutiful_audit_event SET reason = CAST(x'617320' || x'61ff62' AS TEXT)")

    assert {event.reason for event in await trail(store)} == {"as " + SHOWN}  # it looks the same
    found = await ada.audit.verify()
    assert found.broken is not None and found.broken.seq == 1


@pytest.mark.parametrize("column", ["kind", "queue", "tenant", "correlation_id", "created_by", "options", "payload"])
async def test_a_job_that_is_not_utf8_is_listed_and_shown_with_its_neighbours(store: Store, column: str) -> None:
    bad, good = await enqueue_one(store), await enqueue_one(store)
    by_hand(store, f"UPDATE dutiful_job SET {column} = {BAD} WHERE id = ?", bad.bytes)

    for some in (JobFilter(), JobFilter(queue="default"), JobFilter(kinds=[KIND]), JobFilter(text="nothing")):
        await store.queries.jobs(some)
    page = await store.queries.jobs(JobFilter())
    assert {job.id for job in page} == {bad, good}
    assert (await operator(store).jobs.get(bad)).id == bad
    assert len(await store.events.views([bad, good])) == 2
    msgspec.json.encode(page.jobs)  # as the API does


@pytest.mark.parametrize("bytes_", ["ff", "80", "61ff", "ee80"])
async def test_a_queue_or_kind_that_is_not_utf8_hides_no_other_and_is_not_met_forever(
    store: Store, bytes_: str
) -> None:
    for queue in ("a", "m", "z"):
        await enqueue_one(store, queue=queue, tenant="acme")
    for table in ("ready", "job"):
        by_hand(store, f"UPDATE dutiful_{table} SET queue = CAST(x'{bytes_}' AS TEXT) WHERE queue = 'm'")

    assert [level.queue for level in await store.claims.peek([KIND])] == ["a", "z"]
    await store.metrics.depths()
    await store.metrics.depths(tenant="acme")
    assert len(await store.queries.jobs(JobFilter(kinds=[KIND]))) >= 2
    by_hand(store, f"UPDATE dutiful_job SET kind = CAST(x'{bytes_}' AS TEXT) WHERE queue = 'z'")
    assert len(await store.queries.jobs(JobFilter(queue="a"))) == 1


def _any_handler(n: str = "") -> None: ...


async def test_a_payload_that_is_not_utf8_is_claimed_with_its_neighbours_but_given_to_no_handler(
    store: Store,
) -> None:
    bad, good = await enqueue_one(store), await enqueue_one(store, payload='{"n":1}')
    by_hand(store, f"UPDATE dutiful_job SET payload = {BAD_JSON} WHERE id = ?", bad.bytes)

    claims = {one.job_id: one.payload for one in await claim(store)}

    assert claims[good] == '{"n":1}'
    assert claims[bad] == "", "a handler that takes any field would be called with what replaced it"
    with pytest.raises(PayloadInvalid):
        Signature(_any_handler, KIND).decode(claims[bad])


async def test_a_dead_letter_that_is_not_utf8_is_listed_searched_and_not_sent_again(store: Store) -> None:
    bad, good = await dead_letter(store), await dead_letter(store)
    by_hand(store, f"UPDATE dutiful_dead_letter SET message = {BAD} WHERE job_id = ?", bad.bytes)
    by_hand(
        store,
        "UPDATE dutiful_dead_letter_body SET job = CAST(replace(job, '\"payload\":{}', '\"payload\":' || "
        f"{BAD_JSON}) AS TEXT) WHERE job_id = ?",
        bad.bytes,
    )

    assert {letter.id for letter in await store.dead_letters.search(DeadLetterFilter())} == {bad, good}
    assert {letter.id for letter in await store.dead_letters.search(DeadLetterFilter(text="MAILBOX"))} == {good}
    ada = operator(store)
    assert (await ada.dead_letters.get(bad)).message == SHOWN
    with pytest.raises(PayloadInvalid):
        await ada.dead_letters.reprocess(bad)


async def test_a_webhook_post_that_is_not_utf8_is_taken_once_with_its_neighbours(store: Store) -> None:
    await store.webhooks.put([webhook()])
    await finish_one(store)
    await finish_one(store)
    oldest = "(SELECT min(id) FROM dutiful_webhook_post)"
    by_hand(store, f"UPDATE dutiful_webhook_post SET error = {BAD} WHERE id = {oldest}")

    taken = await store.webhooks.take(10, timedelta(minutes=1))

    assert [post.attempts for post in taken] == [1, 1]


async def test_a_scheduled_job_that_is_not_utf8_can_be_run_now(store: Store) -> None:
    job_id = await enqueue_one(store, run_at=T0 + timedelta(days=1))
    by_hand(store, f"UPDATE dutiful_scheduled SET tenant = {BAD} WHERE job_id = ?", job_id.bytes)

    assert await store.control.run_now(job_id) == "ready"


async def test_counts_of_a_kind_that_is_not_utf8_leave_the_others(store: Store) -> None:
    await store.metrics.add(ADA, 1, [AttemptStats(kind=kind, outcome="completed", count=1) for kind in "abc"])
    by_hand(store, f"UPDATE dutiful_counter SET kind = {BAD} WHERE kind = 'b'")

    counted = await store.metrics.counted(timedelta(hours=1))

    assert {stats.kind for stats in counted.ever} == {"a", SHOWN, "c"}
