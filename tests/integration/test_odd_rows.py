"""Rows written by SQL that Python cannot read or does not expect do not affect other jobs."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import apsw
import asyncpg
import msgspec
import psycopg
import pytest
from operating import dead_letter, now, operator

from dutiful.core.errors import DataRefused, PayloadInvalid
from dutiful.core.outcome import Failed
from dutiful.core.review.state import ReviewAct
from dutiful.maintenance import reviewer
from dutiful.maintenance.bulk_step import step
from dutiful.maintenance.reviewer import Reviewer
from dutiful.store import Store
from dutiful.store.dead_letters import BulkState, DeadLetterFilter
from dutiful.store.queries import JobFilter
from dutiful.stores.postgres import PostgresStore
from suite.builders import OOPS, T0, at, enqueue_one, finish_one, new_job
from suite.webhooks import webhook

ODD = {
    "a number of 5,000 digits": f'{{"n": {"9" * 5_000}}}',
    "arrays within arrays": f'{{"a": {"[" * 3_000}{"]" * 3_000}}}',
    "arrays that can just be read": f'{{"a": {"[" * 900}{"]" * 900}}}',
}


def put_in(store: Store, job_id: UUID, payload: str) -> None:
    """Write rows that no Dutiful client would write."""
    if isinstance(store, PostgresStore):
        with psycopg.connect(store.direct_dsn) as connection:
            connection.execute("UPDATE dutiful.job SET payload = %s WHERE id = %s", [payload, job_id])
            connection.execute(
                "UPDATE dutiful.dead_letter SET job = jsonb_set(job, '{payload}', %s) WHERE job_id = %s",
                [payload, job_id],
            )
            connection.execute("UPDATE dutiful.finished SET result = %s WHERE job_id = %s", [payload, job_id])
        return
    by_hand(store, "UPDATE dutiful_job SET payload = ? WHERE id = ?", payload, job_id.bytes)
    by_hand(store, "UPDATE dutiful_finished SET result = ? WHERE job_id = ?", payload, job_id.bytes)
    by_hand(
        store,
        "UPDATE dutiful_dead_letter_body SET job = replace(job, '\"payload\":{}', ?) WHERE job_id = ?",
        f'"payload":{payload}',
        job_id.bytes,
    )


def by_hand(store: Store, statement: str, *args: Any) -> None:
    """With the library that this process uses already, because a second one would drop the locks of the first."""
    database = apsw.Connection(store.url.removeprefix("sqlite:///"))
    database.execute(statement, args)
    database.close()


@pytest.mark.parametrize("payload", ODD.values(), ids=ODD)
async def test_a_job_that_cannot_be_read_whole_is_listed_with_its_neighbours(store: Store, payload: str) -> None:
    odd, failed = await finish_one(store), await finish_one(store, Failed(OOPS, final=True))
    await enqueue_one(store)
    for job_id in (odd, failed):
        put_in(store, job_id, payload)

    page = await store.queries.jobs(JobFilter())
    assert len(page) == 3
    assert "cannot be read by Python" in msgspec.json.encode(page.jobs).decode()
    assert {record.id for record in await store.queries.outcomes([odd, failed])} == {odd, failed}
    assert len(await store.events.views([job.id for job in page])) == 3
    (letter,) = await store.dead_letters.search(DeadLetterFilter())
    assert "cannot be read by Python" in msgspec.json.encode(letter).decode()
    assert len((await store.retention.mark_stale(timedelta(0), 10, None, sent=False, now=at(1))).jobs) == 2
    assert len(await store.retention.unsent(10)) == 2
    await store.retention.mark_sent([odd, failed], [], now=at(1))
    assert (
        len(
            (
                await store.retention.delete(
                    timedelta(0), 10, None, stale_only=True, sent=False, now=at(2), tombstones=True
                )
            ).jobs
        )
        == 2
    )
    assert len(await store.retention.unsent(10)) == 2


async def test_a_webhook_about_it_is_posted_with_a_placeholder_for_unreadable_values(store: Store) -> None:
    await store.webhooks.put([webhook()])
    await finish_one(store)
    if isinstance(store, PostgresStore):
        with psycopg.connect(store.direct_dsn) as connection:
            connection.execute(f"UPDATE dutiful.webhook_post SET data = data || '{ODD['a number of 5,000 digits']}'")
    else:
        by_hand(store, "UPDATE dutiful_webhook_post SET data = '{\"n\": ' || ? || '}'", "9" * 5_000)

    (post,) = await store.webhooks.take(10, timedelta(minutes=1))

    assert "cannot be read by Python" in post.data["n"]


async def test_it_is_not_run_again_with_placeholders_in_its_payload(store: Store) -> None:
    job_id, good = await dead_letter(store), await dead_letter(store)
    put_in(store, job_id, ODD["a number of 5,000 digits"])
    ada = operator(store)

    with pytest.raises(PayloadInvalid, match="cannot be read by Python"):
        await ada.dead_letters.reprocess(job_id)
    run = await ada.bulk.start(ReviewAct.REPROCESS, DeadLetterFilter(), "all")
    after, _ = await step(store.dead_letters, run, {})

    assert after is not None and (after.state, after.done, after.skipped) == (BulkState.DONE, 1, 1)
    letters = {letter.id: letter.status for letter in await store.dead_letters.search(DeadLetterFilter())}
    assert letters == {job_id: "pending_review", good: "reprocessing"}


async def test_a_bulk_run_that_fails_unexpectedly_blocks_no_other_and_is_logged_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for tenant in ("acme", "globex"):
        await dead_letter(store, tenant=tenant)
    ada = operator(store)
    bad = await ada.bulk.start(ReviewAct.DISCARD, DeadLetterFilter(tenant="acme"), "acme's")
    good = await ada.bulk.start(ReviewAct.DISCARD, DeadLetterFilter(tenant="globex"), "globex's")

    async def failing(*args: object, **options: object) -> object:
        if args[1].id == bad.id:  # type: ignore[attr-defined]
            raise ValueError("an unexpected error")
        return await step(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(reviewer, "step", failing)
    service = Reviewer(store.dead_letters, {}, lambda lines: None)
    while await service.step_all():
        pass
    await service.step_all()

    done = await store.dead_letters.bulk_run(good.id)
    assert done is not None and done.state is BulkState.DONE
    assert caplog.text.count("an unexpected error") >= 1
    assert len([record for record in caplog.records if record.name == "dutiful.maintenance"]) == 1


ODD_FLEET = {
    "lanes that are none": """insert into dutiful.worker
        (id, name, host, pid, started_at, seen_at, expires_at, lanes, kinds)
        values (gen_random_uuid(), 'w', 'h', 1, now(), now(), now(), '{"general": [7]}', '[7]')""",
    "a bulk run with another filter": """insert into dutiful.bulk_run
        (id, created_at, total, done, skipped, act, state, by, origin, filter)
        values (gen_random_uuid(), now(), 1, 0, 0, 'discard', 'running', 'eve', 'sql', '{"status": 7}')""",
    "counters without a sketch": """insert into dutiful.counter_total
        (count, payload_bytes, payload_most, run_microseconds, wait_microseconds, kind, outcome, run, wait)
        values (1, 1, 1, 1, 1, 'greet', 'done', '{"x": "y"}', '7')""",
}


@pytest.mark.parametrize("backend", ["postgres18"])
@pytest.mark.parametrize("statement", ODD_FLEET.values(), ids=ODD_FLEET)
async def test_a_row_that_no_process_writes_stops_neither_lists_nor_services(
    store: PostgresStore, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    await dead_letter(store)
    run = await operator(store).bulk.start(ReviewAct.DISCARD, DeadLetterFilter())
    with psycopg.connect(store.direct_dsn) as connection:
        connection.execute(statement.encode())

    service = Reviewer(store.dead_letters, {}, lambda lines: None)
    while await service.step_all():
        pass

    done = await store.dead_letters.bulk_run(run.id)
    assert done is not None and done.state is BulkState.DONE
    assert [one.id for one in await store.dead_letters.bulk_runs()] == [run.id]
    assert [worker.lanes for worker in await store.workers.all()] in ([], [{}])
    await store.metrics.counted(timedelta(hours=1))
    if "bulk_run" in statement:
        assert "cannot be read" in caplog.text


# --- what the database refuses


FOREVER = {
    "worker": "(id, name, host, pid, started_at, seen_at, expires_at, lanes, kinds) values "
    "(gen_random_uuid(), 'w', 'h', 1, 'infinity', now(), now(), '{}', '[]')",
    "worker with a list of lanes": "(id, name, host, pid, started_at, seen_at, expires_at, lanes, kinds) values "
    "(gen_random_uuid(), 'w', 'h', 1, now(), now(), now(), '[1]', '[]')",
    "worker with a number of kinds": "(id, name, host, pid, started_at, seen_at, expires_at, lanes, kinds) values "
    "(gen_random_uuid(), 'w', 'h', 1, now(), now(), now(), '{}', '7')",
    "worker with a long name": "(id, name, host, pid, started_at, seen_at, expires_at, lanes, kinds) values "
    "(gen_random_uuid(), repeat('w', 501), 'h', 1, now(), now(), now(), '{}', '[]')",
    "schedule": "(name, kind, expression, timezone, catch_up, job, next_at) values "
    "('s', 'greet', '* * * * *', 'UTC', 'one', '{}', '-infinity')",
    "schedule of a list": "(name, kind, expression, timezone, catch_up, job, next_at) values "
    "('s', 'greet', '* * * * *', 'UTC', 'one', '[]', now())",
    "pause": "(scope, name, since) values ('queue', 'mail', 'infinity')",
    "alert": "(rule, series, state, since, summary) values ('errors', '', 'firing', 'infinity', 's')",
    "breaker": "(name, failures_allowed, open_for, probes, updated_at) values ('b', -1, '1 s', 1, now())",
    "bulk_run": "(id, created_at, total, done, skipped, act, state, by, origin, filter) values "
    "(gen_random_uuid(), now(), 1, 0, 0, 'nonsense', 'running', 'eve', 'sql', '{}')",
}


@pytest.mark.parametrize("name", FOREVER)
async def test_a_row_that_python_cannot_read_is_refused(pg18_url: str, name: str) -> None:
    with psycopg.connect(pg18_url) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(f"insert into dutiful.{name.split()[0]} {FOREVER[name]}".encode())


REFUSED = {
    "after the year 9999": "p_run_at => '20000-01-01'",
    "for ever": "p_run_at => 'infinity'",
    "since ever": "p_run_at => '-infinity'",
    "before Christ": "p_run_at => '0044-03-15 BC'",
    "a text for a subject": "p_subject => '\"x\"'",
    "a list for a subject": "p_subject => '[1, 2]'",
    "no tenant": "p_tenant => ''",
    "all tenants": "p_tenant => '*'",
    "a long tenant": "p_tenant => repeat('t', 201)",
    "a long queue": "p_queue => repeat('q', 201)",
    "a long correlation id": "p_correlation_id => repeat('c', 201)",
}


@pytest.mark.parametrize("argument", REFUSED.values(), ids=REFUSED)
async def test_payloads_that_cannot_be_read_back_unchanged_are_refused(pg18_url: str, argument: str) -> None:
    connection = await asyncpg.connect(pg18_url)
    try:
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(f"SELECT dutiful.enqueue('greet', {argument})")
        await connection.execute(
            "SELECT dutiful.enqueue('greet', p_run_at => '9999-12-31 23:59:59+00', p_subject => '{}')"
        )
    finally:
        await connection.close()


LONG = "é" * 201


@pytest.mark.parametrize(
    "fields",
    [
        {"tenant": ""},
        {"tenant": "*"},
        {"delay": timedelta(days=4_000_000)},
        {"kind": LONG},
        {"queue": LONG},
        {"tenant": LONG},
        {"correlation_id": LONG},
    ],
    ids=lambda fields: "-".join(fields) + str(len(str(fields))),
)
async def test_a_store_refuses_such_payloads_too(store: Store, fields: dict[str, object]) -> None:
    with pytest.raises(DataRefused):
        await store.jobs.insert([new_job(**fields)], now=T0)

    await store.jobs.insert([new_job(kind=LONG[1:], queue=LONG[1:], tenant=LONG[1:], correlation_id=LONG[1:])], now=T0)
    assert (await store.leadership.survey(UUID(int=1), timedelta(seconds=5), now=now())).next_run_at is None
