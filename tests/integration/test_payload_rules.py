"""Rules for payloads at every entry: what breaks them is not stored, or not run."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from running_workers import clocked, final, working

import secret_cases
from dutiful import (
    Context,
    Dutiful,
    JobFailed,
    OnConflict,
    PayloadInvalid,
    Rules,
    Scope,
    State,
    Unique,
    UniqueConflict,
)
from dutiful.core.job import JobRecord, NewJob
from dutiful.core.redaction import sensitive_names
from dutiful.core.redaction.sensitive_names import meaning, words
from dutiful.kind import Kind
from dutiful.maintenance.scheduler import Scheduler
from dutiful.store.leadership import Survey
from dutiful.store.queries import JobFilter
from dutiful.testing import Clock

RULES = Rules(
    required={"tenant_id": int, "correlation_id": UUID, "idempotency_key": str},
    references=["connection_id"],
    tenant="tenant_id",
    correlation_id="correlation_id",
    unique=Unique("idempotency_key", Scope.FOREVER, OnConflict.REJECT, across_kinds=True),
    versions=["1.0", "2.0"],
)
GOOD: dict[str, Any] = {
    "tenant_id": 123,
    "correlation_id": "550e8400-e29b-41d4-a716-446655440000",
    "idempotency_key": "email_fetch_conn_456_msg_789",
    "connection_id": 456,
}
# What a job's options keep of its key, for a run again.
KEPT = {"unique_as": {"scope": "forever", "across_kinds": True}, "unique_field": "idempotency_key"}
POSTGRES = pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
seen: list[Any] = []


@pytest.fixture
def fetch(app: Dutiful) -> Kind[..., Any]:
    seen.clear()
    app.category("ingestion", RULES)

    @app.job(category="ingestion")
    async def fetch(ctx: Context, connection_id: int, box: str = "inbox") -> None:
        seen.append((ctx.tenant, connection_id, box, ctx.payload["idempotency_key"], dict(ctx.options)))
        assert ctx.payload.get("box", "inbox") == box

    @fetch.upgrade("1.0")
    def renamed(old: dict[str, Any]) -> dict[str, Any]:
        return {**{name: value for name, value in old.items() if name != "mailbox"}, "box": old["mailbox"]}

    return fetch


async def stored(app: Dutiful) -> list[JobRecord]:
    return (await app.jobs()).jobs


@pytest.mark.req("W14", "W17")
async def test_every_python_call_refuses_what_breaks_the_rules(app: Dutiful, fetch: Kind[..., Any]) -> None:
    bad = {**GOOD, "api_key": "x"}
    del bad["correlation_id"]
    for enqueued in (
        lambda: fetch.enqueue(**bad),
        lambda: fetch.enqueue_many([GOOD, bad]),
        lambda: app.enqueue("fetch", bad),
        lambda: asyncio.to_thread(fetch.sync.enqueue, **bad),
        lambda: asyncio.to_thread(fetch.sync.enqueue_many, [bad]),
    ):
        with pytest.raises(PayloadInvalid) as caught:
            await enqueued()
        assert [error.field for error in caught.value.errors] == ["api_key", "correlation_id"]
    assert await stored(app) == []


@pytest.mark.req("W8", "W14")
async def test_every_door_of_python_refuses_a_secret_in_a_subject(app: Dutiful, fetch: Kind[..., Any]) -> None:
    subject = {"order": 7, "note": [{"name": "api_key", "value": "x"}]}
    chosen = fetch.options(subject=subject)
    operator = await app.operator("ada")
    for enqueued in (
        lambda: chosen.enqueue(**GOOD),
        lambda: chosen.enqueue_many([GOOD]),
        lambda: app.enqueue("fetch", GOOD, subject=subject),
        lambda: asyncio.to_thread(chosen.sync.enqueue, **GOOD),
        lambda: asyncio.to_thread(chosen.sync.enqueue_many, [GOOD]),
        lambda: operator.jobs.enqueue("fetch", GOOD, subject=subject),
    ):
        with pytest.raises(PayloadInvalid) as caught:
            await enqueued()
        assert [error.field for error in caught.value.errors] == ["subject.note[0].value"]
    assert await stored(app) == []


@pytest.mark.req("W8", "W17", "W32")
async def test_a_subject_that_went_round_the_doors_is_a_dead_letter_before_its_job_runs(app: Dutiful) -> None:
    seen.clear()
    kinds = add_handlers(app)
    async with app, working(app):
        client = await app.client()
        jobs = [NewJob(app.new_id(), one, "default", '{"n": 1}', subject='{"token": "x"}') for one in kinds]
        await client.store.jobs.insert(jobs)
        client.delivery.hint(frozenset({("default", 100)}))
        for job in jobs:
            with pytest.raises(Exception, match=r"subject\.token means a token"):
                await client.result(job.id, "20s")
    assert seen == []


@pytest.mark.req("W7", "W11", "W25", "W26", "W27", "W31")
async def test_a_job_gets_its_columns_from_its_payload(app: Dutiful, fetch: Kind[..., Any]) -> None:
    handle = await fetch.enqueue(**GOOD)
    with pytest.raises(UniqueConflict, match="email_fetch_conn_456_msg_789"):
        await fetch.enqueue(**{**GOOD, "connection_id": 457})
    other = await fetch.enqueue(**{**GOOD, "tenant_id": 124})
    async with working(app):
        record = await final(app, handle)
        assert (await final(app, other)).tenant == "124"
    assert (record.tenant, record.correlation_id) == ("123", GOOD["correlation_id"])
    assert record.payload == {**GOOD, "payload_version": "2.0"}
    key = GOOD["idempotency_key"]
    assert sorted(seen)[0] == ("123", 456, "inbox", key, {"unique": key, **KEPT})
    with pytest.raises(UniqueConflict):
        await fetch.enqueue(**GOOD)


@pytest.mark.req("W11")
@pytest.mark.req("L101")
async def test_a_job_of_an_older_version_is_upgraded_before_it_runs(app: Dutiful, fetch: Kind[..., Any]) -> None:
    handle = await fetch.enqueue(**GOOD, payload_version="1.0", mailbox="sent")
    async with working(app):
        record = await final(app, handle)
    assert record.state is State.COMPLETED and seen[0][2] == "sent"
    assert record.payload["mailbox"] == "sent" and "box" not in record.payload


def in_process(n: int) -> None:
    raise AssertionError


def add_handlers(app: Dutiful) -> list[str]:
    """One of each way to run a job."""

    @app.job(rules=Rules(required=["n"]))
    async def on_loop(n: int) -> None:
        seen.append(n)

    @app.job(rules=Rules(required=["n"]))
    def in_thread(n: int) -> None:
        seen.append(n)

    app.job(rules=Rules(required=["n"]), process=True)(in_process)

    phased = app.pipeline("phased", rules=Rules(required=["n"]))

    @phased.phase
    def only(n: int) -> None:
        seen.append(n)

    return list(app.kinds)


@pytest.mark.req("W11")
async def test_every_phase_sees_the_upgraded_payload(app: Dutiful) -> None:
    seen.clear()
    phased = app.pipeline("phased", rules=Rules(required=["box"], versions=["1.0", "2.0"]))

    @phased.phase
    def only(ctx: Context, n: int) -> None:
        seen.append((n, ctx.payload["box"], ctx.payload["payload_version"]))

    @phased.upgrade("1.0")
    def renamed(old: dict[str, Any]) -> dict[str, Any]:
        return {"n": old["number"], "box": "sent"}

    handle = await app.enqueue("phased", {"number": 1, "payload_version": "1.0"})
    async with working(app):
        await final(app, handle)
    assert seen == [(1, "sent", "2.0")]


@pytest.mark.req("W17", "W32")
async def test_what_bypassed_the_rules_is_a_dead_letter_before_it_runs(app: Dutiful) -> None:
    seen.clear()
    kinds = add_handlers(app)
    async with app, working(app):
        store = (await app.client()).store
        # As code does that knows no rules; on Postgres, a plain job is not looked at by the database either.
        jobs = [NewJob(app.new_id(), kind, "default", '{"n": 1, "password": "x"}') for kind in kinds]
        await store.jobs.insert(jobs)
        (await app.client()).delivery.hint(frozenset({("default", 100)}))
        for job in jobs:
            with pytest.raises(JobFailed, match="password means a password"):
                await (await app.client()).result(job.id, "20s")
            record = await app.find(job.id)
            assert record is not None and record.errors is not None
            assert (record.state, record.attempt) == (State.FAILED, 1)
            assert (record.errors[0]["type"], record.errors[0]["class"]) == ("PayloadInvalid", "non_retryable")
    assert seen == []


@pytest.mark.req("W17")
async def test_a_job_that_belongs_to_another_tenant_than_its_payload_is_not_run(
    app: Dutiful, fetch: Kind[..., Any]
) -> None:
    async with app, working(app):
        client = await app.client()
        job = NewJob(app.new_id(), "fetch", "default", json.dumps(GOOD), tenant="456")
        await client.store.jobs.insert([job])
        client.delivery.hint(frozenset({("default", 100)}))
        with pytest.raises(JobFailed, match="tenant_id is another tenant than the job's own"):
            await client.result(job.id, "20s")
    assert seen == []


async def test_each_firing_of_a_schedule_has_a_key_of_its_own(app: Dutiful, fetch: Kind[..., Any]) -> None:
    app.schedule(fetch, every="10m", payload={**GOOD, "idempotency_key": "nightly"}, catch_up="all")
    clock = Clock()
    async with clocked(app, clock) as client:
        await client.store.schedules.put(app.schedule_records(clock.now()))
        clock.advance(timedelta(minutes=25))
        await Scheduler(client.store, app.new_id).tick(Survey(True, clock.now(), next_fire_at=clock.now()))
        jobs = await client.store.queries.jobs(JobFilter(kind="fetch"))
    keys = {job.payload["idempotency_key"] for job in jobs}
    assert len(keys) == len(jobs) > 1 and all(key.startswith("nightly_") for key in keys)
    assert {job.options["unique"] for job in jobs if job.options} == keys
    assert {(job.tenant, job.correlation_id) for job in jobs} == {("123", GOOD["correlation_id"])}


# --- SQL, which only Postgres has


@pytest.fixture
async def sql(app: Dutiful, fetch: Kind[..., Any], app_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that enqueues by SQL, after a worker has declared the rules."""
    async with working(app):
        pass
    connection = await asyncpg.connect(app_url)
    yield connection
    await connection.close()


async def insert(sql: asyncpg.Connection, payload: dict[str, Any], **columns: Any) -> Any:
    job_id = str(await sql.fetchval("select dutiful.new_id()"))
    job = {"id": job_id, "kind": "fetch", "payload": payload, **columns}
    return await sql.fetchrow("select job_id, insertion from dutiful.insert_jobs($1::text::jsonb)", json.dumps([job]))


@POSTGRES
@pytest.mark.req("W17", "W10", "W11", "W3")
@pytest.mark.parametrize(
    ("change", "columns", "message"),
    [
        ({"tenant_id": None, "connection_id": ""}, {}, "kind fetch: the payload lacks: tenant_id, connection_id"),
        ({"box": "x" * 10_240}, {}, "kind fetch: the payload has 10391 bytes, more than the limit of 10240"),
        ({"payload_version": "3.0"}, {}, "kind fetch: its payload_version is not accepted"),
        ({}, {"tenant": "456"}, "kind fetch: the payload's tenant_id is another tenant than the job's own"),
        ({}, {"correlation_id": "c"}, "kind fetch: the payload's correlation_id is another than the job's own"),
        ({}, {"unique": {"key": "else"}}, "kind fetch: the unique key is not the payload's idempotency_key"),
        ({}, {"unique": {"key": GOOD["idempotency_key"], "scope": "queued"}}, "or is not held as the rules say"),
    ],
)
async def test_the_database_refuses_what_it_can_check_by_itself(
    app: Dutiful, sql: asyncpg.Connection, change: dict[str, Any], columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match=message) as caught:
        await insert(sql, {**GOOD, **change}, **columns)
    assert caught.value.hint
    assert await stored(app) == []


@pytest.fixture
async def take(app: Dutiful, app_url: str) -> AsyncIterator[asyncpg.Connection]:
    """The same for a kind that takes any field, and whose rules only forbid what is sensitive."""

    @app.job(batch=10, rules=Rules(allow=["deviceToken"], forbid=["social_security_number"]))
    async def take(payloads: list[dict[str, Any]]) -> None: ...

    async with working(app):
        pass
    connection = await asyncpg.connect(app_url)
    yield connection
    await connection.close()


async def refusal(sql: asyncpg.Connection, payload: dict[str, Any], **columns: Any) -> str | None:
    try:
        await insert(sql, payload, kind="take", **columns)
    except asyncpg.CheckViolationError as error:
        return str(error)
    return None


@POSTGRES
@pytest.mark.req("W8", "W17")
async def test_the_database_finds_the_secrets_that_python_finds(take: asyncpg.Connection) -> None:
    wrong = []
    for name, (payload, _, by_sql) in secret_cases.CATCH.items():
        for message in (await refusal(take, payload), await refusal(take, {"x": [payload]})):
            if (message is not None) != by_sql:
                wrong.append((name, message))
            elif message is not None:
                assert message.startswith("kind take: the payload has ")
                assert "hunter2" not in message and secret_cases.GITHUB not in message
        message = await refusal(take, {}, subject=payload)
        if (message is not None) != by_sql or "subject" not in (message or "subject"):
            wrong.append((f"{name}, in a subject", message))
    assert wrong == []


@POSTGRES
@pytest.mark.req("W8")
async def test_the_database_refuses_nothing_that_python_accepts(take: asyncpg.Connection) -> None:
    wrong = [(name, await refusal(take, payload, subject=payload)) for name, payload in secret_cases.PASS.items()]
    assert [one for one in wrong if one[1] is not None] == []


@POSTGRES
async def test_the_database_knows_the_names_that_a_kind_allows_and_forbids(take: asyncpg.Connection) -> None:
    assert await refusal(take, {"device_token": "x", "env": [{"name": "deviceToken", "value": "x"}]}) is None
    assert await refusal(take, {"argv": ["--device-token", "abc"]}) is None
    assert "a token in it, in other_token" in str(await refusal(take, {"other_token": "x"}))
    for payload in (
        {"userSocialSecurityNumber": 1},
        {"f": [{"name": "social-security-number", "value": 1}]},
        {"argv": ["--social-security-number", "1"]},
    ):
        assert "what must not be stored" in str(await refusal(take, payload))
    assert await refusal(take, {"security_number": 1, "number": 1}) is None


@POSTGRES
@pytest.mark.req("W8")
async def test_the_database_and_python_read_names_alike(take: asyncpg.Connection) -> None:
    """Every known ending, with what may stand before and after it."""
    endings = [*sensitive_names.MEANINGS, *sensitive_names.WHOLE, *sensitive_names.HARMLESS]
    names = [f"{a}{b}{c}" for a in ("", "x_", "has_", "my") for b in endings for c in ("", "s", "_v2", "_id", "Text")]
    names += ["apiKey", "APIKey", "X-API-Key", "userPassword2", "HTTPAuth", "a", "", "_", "\u00e9", "1", "Page1Token"]
    rows = await take.fetch(
        "select n, dutiful.name_words(n) as words, dutiful.name_meaning(dutiful.name_words(n)) as meaning "
        "from unnest($1::text[]) n", names,
    )  # fmt: skip
    wrong = [row["n"] for row in rows if not row["n"].startswith("has_") and row["meaning"] != meaning(row["n"])]
    assert wrong == []
    assert [row["n"] for row in rows if row["n"].isascii() and tuple(row["words"]) != words(row["n"])] == []


@POSTGRES
@pytest.mark.req("W17", "W25", "W26", "W27")
async def test_a_job_by_sql_is_as_good_as_one_by_python(app: Dutiful, sql: asyncpg.Connection) -> None:
    made = await insert(sql, GOOD)
    assert made["insertion"] == "made"
    assert (await insert(sql, GOOD))["insertion"] == "rejected"
    with pytest.raises(UniqueConflict):
        await app.kind("fetch").enqueue(**GOOD)
    assert (await insert(sql, {**GOOD, "tenant_id": 124, "payload_version": "1.0", "mailbox": "a"}))[
        "insertion"
    ] == "made"
    async with working(app):
        for job in await stored(app):
            await (await app.client()).result(job.id, "20s")
    record = await app.find(made["job_id"])
    assert record is not None and (record.tenant, record.correlation_id) == ("123", GOOD["correlation_id"])
    assert record.payload["payload_version"] == "2.0"
    assert record.options == {"unique": GOOD["idempotency_key"], **KEPT}


@POSTGRES
@pytest.mark.req("W9", "W17")
async def test_a_migrated_database_holds_sql_to_types_and_references_before_any_worker_started(
    app: Dutiful, fetch: Kind[..., Any], app_url: str
) -> None:
    @app.job(rules=Rules(references=["document_id"]))
    async def scan(
        document_id: str, pages: int | None = None, until: date | None = None, before: datetime | None = None
    ) -> None: ...

    await app.migrate()
    sql = await asyncpg.connect(app_url)
    try:
        for kind, wrong, field in (
            ("fetch", {**GOOD, "tenant_id": "123"}, "tenant_id is not a whole number"),
            ("fetch", {**GOOD, "correlation_id": "no-uuid"}, "correlation_id is not a UUID"),
            ("fetch", {**GOOD, "idempotency_key": 7}, "idempotency_key is not a text"),
            ("fetch", {**GOOD, "idempotency_key": "k" * 501}, "idempotency_key must be"),
            ("fetch", {**GOOD, "idempotency_key": " k "}, "idempotency_key must be"),
            ("fetch", {**GOOD, "tenant_id": 1 << 63}, "tenant_id must be"),
            ("fetch", {**GOOD, "connection_id": "456"}, "connection_id is not a whole number"),
            ("fetch", {**GOOD, "box": None}, "box"),
            ("fetch", {**GOOD, "api_key": "x"}, "api_key"),
            ("fetch", {**GOOD, "about": "Dear Ada, the papers", "more": 1}, "unknown: about, more"),
            ("scan", {"document_id": "d", "about": None}, "unknown: about"),
            ("scan", {"document_id": "Dear Ada, the papers"}, "document_id is not a reference"),
            ("scan", {"document_id": "x" * 201}, "document_id is not a reference"),
            ("scan", {"document_id": "d", "pages": 1.5}, "pages is not a whole number"),
            ("scan", {"document_id": "d", "until": "soon"}, "until is not a date"),
            ("scan", {"document_id": "d", "before": "Dear Ada, the papers"}, "before is not a time"),
            ("scan", {"document_id": "d", "before": "2026-03-31"}, "before is not a time"),
        ):
            with pytest.raises(asyncpg.CheckViolationError) as refused:
                await insert(sql, wrong, kind=kind)
            assert field in str(refused.value), wrong
        for kind, right in (
            ("fetch", GOOD),
            ("scan", {"document_id": "d", "pages": None, "until": "2026-03-31"}),
            ("scan", {"document_id": "d", "before": "2026-03-31T08:00:00Z"}),
            ("scan", {"document_id": "d", "before": "2026-03-31 08:00:00.123456+0100"}),
        ):
            assert (await insert(sql, right, kind=kind))["insertion"] == "made"
    finally:
        await sql.close()


@POSTGRES
@pytest.mark.req("W10")
async def test_the_database_counts_bytes_as_python_does(app: Dutiful, sql: asyncpg.Connection) -> None:
    fetch = app.kind("fetch")
    room = 10_240 - len(fetch.check({**GOOD, "box": ""}).text)
    # Postgres writes a blank after each comma and colon; here, they would not fit.
    await fetch.enqueue(**GOOD, box="x" * room)
    full = {**GOOD, "idempotency_key": GOOD["idempotency_key"][::-1], "payload_version": "2.0"}
    assert (await insert(sql, {**full, "box": "x" * room}))["insertion"] == "made"
    with pytest.raises(asyncpg.CheckViolationError, match="10241 bytes"):
        await insert(sql, {**full, "box": "x" * (room + 1)})
    blanks = (
        'select length(\'[1, {"a": [], "b": {}}, []]\') - length(\'[1,{"a":[],"b":{}},[]]\') - dutiful.json_blanks($1)'
    )
    assert await sql.fetchval(blanks, '[1, {"a": [], "b": {}}, []]') == 0


@POSTGRES
async def test_a_schedule_that_the_rules_refuse_holds_up_no_other(
    app: Dutiful, sql: asyncpg.Connection, app_url: str
) -> None:
    older, clock = Dutiful(app_url), Clock()

    @older.job(name="fetch")
    async def without_rules() -> None: ...

    older.schedule(without_rules, every="10m", name="a")
    app.schedule(app.kind("fetch"), every="10m", name="b", payload=GOOD)
    async with clocked(app, clock) as client:
        for declaring in (older, app):
            await client.store.schedules.put(declaring.schedule_records(clock.now()))
        clock.advance(timedelta(minutes=15))
        await Scheduler(client.store, app.new_id).tick(Survey(True, clock.now(), next_fire_at=clock.now()))
    assert [job.tenant for job in await stored(app)] == ["123"]


@POSTGRES
@pytest.mark.req("W14", "W17")
async def test_what_python_has_checked_is_not_judged_by_the_rules_of_another_release(
    sql: asyncpg.Connection, app_url: str
) -> None:
    newer = Dutiful(app_url)

    @newer.job(name="fetch", rules=RULES.plus(Rules(versions=["2.0", "3.0"])))
    async def fetch(connection_id: int) -> None: ...

    async with newer:
        handle = await fetch.enqueue(**GOOD)
        record = await handle.record()
    assert handle.created and record.payload["payload_version"] == "3.0"


@POSTGRES
async def test_to_name_an_earlier_job_opens_no_way_round_the_rules(app: Dutiful, sql: asyncpg.Connection) -> None:
    first = await insert(sql, GOOD)
    with pytest.raises(asyncpg.CheckViolationError, match="lacks"):
        await insert(sql, {"old": True}, retry_of=str(first["job_id"]))


@POSTGRES
async def test_rules_that_the_code_has_dropped_hold_no_longer(
    app: Dutiful, sql: asyncpg.Connection, app_url: str
) -> None:
    newer = Dutiful(app_url)

    @newer.job
    async def fetch() -> None: ...

    async with working(newer):
        pass
    assert (await insert(sql, {}))["insertion"] == "made"
    assert await sql.fetchval("select count(*) from dutiful.payload_rule") == 0


@POSTGRES
async def test_no_payload_is_larger_than_the_table_allows(sql: asyncpg.Connection) -> None:
    large = "select dutiful.insert_jobs(jsonb_build_array(jsonb_build_object('id', dutiful.new_id(), 'kind', 'other', "
    with pytest.raises(asyncpg.CheckViolationError, match="job_payload_size"):
        await sql.execute(large + "'payload', jsonb_build_object('x', repeat('x', 17000000)))))")
