"""Reviews and audit on Postgres: a trail that no role can change, lost replies, and lists along indexes."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from databases import OwnTransaction
from dutiful.core.errors import DataRefused
from dutiful.core.review.audit import Anchor, AuditOutcome, seal
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.store.audit import AuditFilter
from dutiful.store.dead_letters import BulkState, DeadLetterFilter
from dutiful.stores.postgres import PostgresStore, dead_letters
from old_events import any_date
from suite.audit import DAY, OLD, append, check_chain, event, full_event, links, seal_all
from suite.builders import at, claim, complete, token
from suite.dead_letters import act_on, applied, fail_one, the_letter
from suite.dead_letters_bulk import start, step_of
from suite.dead_letters_review import AGAIN


@pytest.fixture
async def store(pg18_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(pg18_url)
    await store.open()
    yield store
    assert await store.queries.check_places() == []
    await store.close()


@pytest.fixture
async def owner(pg18_url: str) -> AsyncIterator[Any]:
    """A connection of the owner of the tables."""
    connection = await asyncpg.connect(pg18_url)
    yield connection
    connection.terminate()


@pytest.fixture
async def clerk(owner: Any, pg18_url: str) -> AsyncIterator[Any]:
    """A connection that acts as a role which may append to the audit trail and read it."""
    role = f"dutiful_clerk_{uuid4().hex[:12]}"
    tables = ", ".join(f"dutiful.audit_{name}" for name in ("event", "unsealed", "seal", "anchor", "policy"))
    await owner.execute(
        f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA dutiful TO {role};"
        f"GRANT SELECT ON {tables} TO {role}; GRANT INSERT ON dutiful.audit_event TO {role}"
    )
    connection = await asyncpg.connect(pg18_url)
    await connection.execute(f"SET ROLE {role}")
    yield connection
    connection.terminate()
    await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def refused(connection: Any, *statements: str) -> None:
    for statement in statements:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)


async def test_not_even_the_owner_changes_or_deletes_what_was_recorded(store: PostgresStore, owner: Any) -> None:
    await append(store, 3)
    await seal_all(store)
    await append(store, 1)

    await refused(
        owner,
        "UPDATE dutiful.audit_event SET principal = 'bob'",
        "DELETE FROM dutiful.audit_event",
        "TRUNCATE dutiful.audit_event",
        "UPDATE dutiful.audit_seal SET hash = ''",
        "DELETE FROM dutiful.audit_seal",
        "TRUNCATE dutiful.audit_seal",
        "INSERT INTO dutiful.audit_anchor (seq, hash, at, keep, trimmed_at) VALUES (3, 'no', now(), '1 day', now())",
    )

    assert len(await store.audit.search(AuditFilter())) == 4
    assert await check_chain(store) == 3


async def append_old(store: PostgresStore, count: int) -> None:
    with any_date(store.direct_dsn):
        await append(store, count, at=OLD)


async def test_an_anchor_only_moves_forward_and_covers_no_more_than_its_seq(store: PostgresStore, owner: Any) -> None:
    await append_old(store, 4)
    seals = await seal_all(store)
    await store.audit.set_retention(DAY)
    assert await store.audit.trim(1, now=OLD + 2 * DAY) == 1
    assert await store.audit.anchor() == Anchor(seq=1, hash=seals[0].hash, at=OLD, keep=DAY, trimmed_at=OLD + 2 * DAY)
    move = "UPDATE dutiful.audit_anchor SET seq = {0.seq}, hash = '{0.hash}'"
    await owner.execute(move.format(seals[1]))

    await refused(
        owner,
        move.format(seals[0]),
        move.format(seals[1]),
        "UPDATE dutiful.audit_anchor SET hash = 'made up'",
        "UPDATE dutiful.audit_anchor SET seq = 3",
        "DELETE FROM dutiful.audit_anchor",
        "TRUNCATE dutiful.audit_anchor",
        f"DELETE FROM dutiful.audit_event WHERE id = '{seals[2].event_id}'",
        "DELETE FROM dutiful.audit_seal WHERE seq = 3",
    )

    assert await check_chain(store) == 2


async def test_a_role_that_may_append_can_do_nothing_else(store: PostgresStore, clerk: Any) -> None:
    await append(store, 2)
    await seal_all(store)
    written = full_event()
    text = msgspec.json.encode([written]).decode()
    forged = msgspec.json.encode([event(action="audit.keep", after={"keep": "2d"})])
    await clerk.execute("SELECT dutiful.append_audit($1)", text)
    login = await clerk.fetchval("SELECT session_user")
    assert await store.audit.unsealed(10) == [msgspec.structs.replace(written, principal=f"ada ({login})")]

    await refused(
        clerk,
        "UPDATE dutiful.audit_event SET principal = 'bob'",
        "DELETE FROM dutiful.audit_event",
        "TRUNCATE dutiful.audit_event",
        "DELETE FROM dutiful.audit_unsealed",
        "INSERT INTO dutiful.audit_seal (seq, event_id, hash) SELECT 3, event_id, '' FROM dutiful.audit_unsealed",
        "SELECT dutiful.seal_audit('{3}', array(SELECT event_id FROM dutiful.audit_unsealed), '{made up}')",
        "SELECT dutiful.trim_audit(10)",
        "UPDATE dutiful.audit_policy SET keep = '2 days'",
        f"SELECT dutiful.append_audit('{forged.decode()}')",
    )

    assert len(await store.audit.search(AuditFilter())) == 3
    assert len(await seal_all(store)) == 1
    assert await check_chain(store) == 3


async def test_an_operator_who_may_not_change_the_policy_cannot_record_that_it_was_changed(
    store: PostgresStore, owner: Any, clerk: Any
) -> None:
    role = await clerk.fetchval("SELECT current_user")
    await owner.execute(f"GRANT INSERT ON dutiful.pause TO {role}")  # what tells an operator from a client
    kept = event(action="audit.keep", after={"keep": "2d"})
    asked = event(action="audit.keep", after={"keep": "2d"}, outcome=AuditOutcome.REQUESTED)

    await refused(clerk, f"SELECT dutiful.append_audit('{msgspec.json.encode([kept]).decode()}')")
    await clerk.execute("SELECT dutiful.append_audit($1)", msgspec.json.encode([asked]).decode())

    assert await store.audit.search(AuditFilter()) == [asked]


async def test_a_role_that_may_trim_deletes_no_more_than_what_is_old(
    store: PostgresStore, owner: Any, clerk: Any
) -> None:
    await append_old(store, 2)
    await append(store, 1, at=datetime.now(UTC))
    await seal_all(store)
    role = await clerk.fetchval("SELECT current_user")
    await owner.execute(f"GRANT EXECUTE ON FUNCTION dutiful.trim_audit TO {role}")
    assert await clerk.fetchval("SELECT dutiful.trim_audit(10, 'infinity')") == 0
    await store.audit.set_retention(DAY)

    assert await clerk.fetchval("SELECT dutiful.trim_audit(10, 'infinity')") == 2

    assert len(await store.audit.search(AuditFilter())) == 1
    assert await check_chain(store) == 1


async def test_retention_does_not_hide_that_an_event_was_deleted(store: PostgresStore, owner: Any) -> None:
    await append_old(store, 3)
    seals = await seal_all(store)
    await owner.execute("ALTER TABLE dutiful.audit_event DISABLE TRIGGER covered")
    await owner.execute("DELETE FROM dutiful.audit_event WHERE id = $1", seals[1].event_id)

    await store.audit.set_retention(DAY)
    assert await store.audit.trim(10, now=OLD + 2 * DAY) == 1

    assert [link.seal.seq for link in await store.audit.sealed(0, 10)] == [2, 3]


async def test_an_event_that_a_superuser_changed_no_longer_fits_its_seal(store: PostgresStore, owner: Any) -> None:
    changed, deleted, _ = await append(store, 3)
    await seal_all(store)
    await owner.execute("SET session_replication_role = replica")
    await owner.execute("UPDATE dutiful.audit_event SET principal = 'bob' WHERE id = $1", changed.id)
    await owner.execute("DELETE FROM dutiful.audit_event WHERE id = $1", deleted.id)

    first, second, _ = await store.audit.sealed(0, 10)

    assert first.event is not None and seal(first.event, None) != first.seal
    assert second.event is None


async def test_a_sealer_waits_for_another_and_is_too_late_then(store: PostgresStore, owner: Any, pg18_url: str) -> None:
    events = await append(store, 2)
    (first,) = links(events[:1])
    async with owner.transaction():
        await owner.execute("SELECT dutiful.seal_audit($1, $2, $3)", [first.seq], [first.event_id], [first.hash])
        late = asyncio.create_task(store.audit.seal(links(events[1:])))
        await OwnTransaction(store, pg18_url).wait_for_a_lock()

    assert await late is False
    assert len(await seal_all(store)) == 1
    assert await check_chain(store) == 2


async def test_a_review_whose_reply_was_lost_is_recognised_when_repeated(store: PostgresStore) -> None:
    letter, other = await fail_one(store), await fail_one(store)
    reviews = [
        act_on(letter, ReviewAct.REPROCESS, event=event()),
        act_on(other, ReviewAct.DISCARD, event=event()),
    ]
    first = await store.dead_letters.review(reviews, now=at(1))

    assert await store.dead_letters.review(reviews, now=at(2)) == first

    assert [answer.applied for answer in first] == [True, True]
    assert len(await claim(store, levels=[AGAIN], now=at(2))) == 1
    assert len(await store.audit.search(AuditFilter())) == 2
    assert (await the_letter(store, other.id)).reviewed_at == at(1)


async def test_a_step_behind_the_cursor_does_nothing_though_all_failed_at_once(store: PostgresStore) -> None:
    letters = [await fail_one(store) for _ in range(3)]
    run = await start(store, filter=DeadLetterFilter(), act=ReviewAct.DISCARD)
    first = step_of(run, letters[2:])
    second = msgspec.structs.replace(first, after=first.to, to=letters[1].cursor)
    for step, letter in ((first, letters[2]), (second, letters[1])):
        assert await store.dead_letters.review([act_on(letter, ReviewAct.DISCARD)], step=step, now=at(1))

    assert await store.dead_letters.review([act_on(letters[0], ReviewAct.DISCARD)], step=second, now=at(2)) == []


async def test_a_payload_that_breaks_the_rules_of_today_does_not_hold_up_a_run(
    store: PostgresStore, owner: Any
) -> None:
    bad, good = await fail_one(store), await fail_one(store, payload='{"n": 1}')
    await owner.execute(
        "INSERT INTO dutiful.payload_rule (kind, size_limit, required, versions, version_field)"
        " VALUES ($1, 10240, '{n}', '{}', 'payload_version')",
        bad.kind,
    )
    run = await start(store, filter=DeadLetterFilter())
    reviews = [act_on(letter, ReviewAct.REPROCESS, event=event(act=run.id)) for letter in (good, bad)]
    with pytest.raises(DataRefused, match="lacks: n"):
        await store.dead_letters.review(reviews, now=at(1))

    answers = await store.dead_letters.review(reviews, step=step_of(run, [good, bad], last=True), now=at(1))

    assert [answer.applied for answer in answers] == [True, False]
    after = await store.dead_letters.bulk_run(run.id)
    assert after is not None and (after.done, after.skipped, after.state) == (1, 1, BulkState.DONE)
    assert len(await claim(store, levels=[AGAIN], now=at(1))) == 1
    assert (await the_letter(store, bad.id)) == bad


async def test_many_running_jobs_do_not_hide_one_that_has_ended(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LOOK", 2)
    letters = [await fail_one(store) for _ in range(6)]
    await applied(store, *(act_on(letter, ReviewAct.REPROCESS) for letter in letters))
    *_, last = sorted(await claim(store, levels=[AGAIN]), key=lambda claimed: claimed.job_id)
    await complete(store, last)

    resolved = [await store.dead_letters.resolve_reprocessed(1, now=at(1)) for _ in range(3)]

    assert resolved == [0, 0, 1]


async def test_a_job_completed_by_a_user_resolves_its_dead_letter_with_the_commit(
    store: PostgresStore, owner: Any
) -> None:
    await applied(store, act_on(await fail_one(store), ReviewAct.REPROCESS))
    (claimed,) = await claim(store, levels=[AGAIN])
    async with owner.transaction():
        await store.claims.complete_within(owner, token(claimed), None)
        assert await store.dead_letters.resolve_reprocessed(10) == 0

    assert await store.dead_letters.resolve_reprocessed(10) == 1


FILL = """
INSERT INTO dutiful.dead_letter
    (job_id, died_at, created_at, attempt, max_attempts, status, kind, queue, tenant, correlation_id, fingerprint, job)
SELECT dutiful.new_id(), now() - n * interval '1 second', now(), 1, 1,
       CASE WHEN n % 10 = 1 THEN 'acknowledged' ELSE 'pending_review' END, 'kind' || n % 10, 'default',
       'tenant' || n % 10, n, md5((n % 10)::text), '{"payload": {}}'
FROM generate_series(1, 3000) n
"""


async def test_pages_are_read_along_an_index(store: PostgresStore, owner: Any) -> None:
    # No jobs belong to these, so that checking all places stays right.
    await owner.execute(FILL)
    await owner.execute("ANALYZE dutiful.dead_letter")
    (letter,) = await store.dead_letters.search(DeadLetterFilter(), limit=1)

    for wanted in (
        DeadLetterFilter(),
        DeadLetterFilter(status=[ReviewState.ACKNOWLEDGED]),
        DeadLetterFilter(kinds=[letter.kind]),
        DeadLetterFilter(tenant=letter.tenant),
        DeadLetterFilter(fingerprint=letter.fingerprint),
    ):
        where, args = dead_letters._where(wanted, 50)
        statement = store.dead_letters._sql["dead_letters"].replace("{where}", where)
        lines = [row[0] for row in await owner.fetch(f"EXPLAIN {statement}", *args)]
        plan = "\n".join(line for line in lines if "Filter: (kind <> ''::text)" not in line)  # true of all
        assert "Index Scan Backward" in plan and "Sort" not in plan and "Filter" not in plan, plan


async def test_a_worker_seals_only_events_that_wait_and_leaves_no_gap(store: PostgresStore, owner: Any) -> None:
    events = await append(store, 2)
    call = "SELECT dutiful.seal_audit($1, $2, $3)"
    first, second = events[0].id, events[1].id
    for seqs, ids in (
        ([1, 2**63 - 1], [first, second]),
        ([1, 3], [first, second]),
        ([1, 2], [first, uuid4()]),
        ([1, 2], [first, first]),
        ([1], [uuid4()]),
    ):
        assert await owner.fetchval(call, seqs, ids, ["made up"] * len(ids)) is False, (seqs, ids)

    assert len(await seal_all(store)) == 2
    assert await check_chain(store) == 2
