"""The example practice: which payloads are accepted, at every entry point."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest
from practice import HERE, THERE, Practice, practice

from dutiful import Dutiful, PayloadInvalid, Rules
from examples.practice.categories import CATEGORIES, JOB_TYPES, PAYLOAD_LIMIT, REFERENCES
from examples.practice.firms import Firms
from examples.practice.payload_validator import PayloadValidator
from examples.practice.platform import Addresses
from examples.practice.service import practice_app

VALID: dict[str, Any] = {
    "tenant_id": 123,
    "correlation_id": "550e8400-e29b-41d4-a716-446655440000",
    "idempotency_key": "email_fetch_conn_456_msg_789",
    "connection_id": 456,
    "external_message_id": "msg_789",
}


def wrong_fields(payload: dict[str, Any], category: str = "ingestion", more: tuple[str, ...] = ()) -> list[str]:
    is_valid, errors = PayloadValidator.validate_payload(payload, category, more)
    assert is_valid is not bool(errors)
    return sorted(error.split()[0] for error in errors)


@pytest.mark.req("W1", "W2")
def test_there_are_eight_categories_and_fifteen_job_types(tmp_path: Path) -> None:
    app = practice_app(f"sqlite:///{tmp_path}/jobs.db", Firms(tmp_path), Addresses("", "", 0))
    assert {name: tuple(k for k, kind in app.kinds.items() if kind.category == name) for name in app.categories} == {
        "ingestion": ("email_ingestion_fetch", "email_ingestion_parse"),
        "sync": ("calendar_sync_pull", "calendar_sync_push"),
        "recurrence": ("recurrence_period_generate", "recurrence_work_create"),
        "orchestration": ("orchestration_step_execute",),
        "documents": ("document_scan", "document_classify"),
        "notifications": ("notification_email_send", "notification_inapp_create"),
        "export": ("firm_export", "firm_purge"),
        "maintenance": ("session_expire", "data_archival"),
    }
    assert list(JOB_TYPES) == list(app.categories)


@pytest.mark.req("W6", "W9", "W12")
@pytest.mark.parametrize("field", ["connection_id", "external_message_id", "folder_id"])
def test_a_reference_to_one_object_is_no_list(field: str) -> None:
    assert wrong_fields(VALID | {field: [1]}) == [field]
    assert wrong_fields(VALID | {field: []}) == [field], "reported once"
    assert wrong_fields(VALID | {f"{field}s": [1, 2]}) == []


@pytest.mark.req("W9")
def test_content_is_refused_wherever_it_is_put() -> None:
    for field, value, path in (
        ("words", ["dear", "sir"], "words"),
        ("message_ids", ["msg_1", "dear sir"], "message_ids[1]"),
        ("note", "please call back", "note"),
        ("about", {"subject": "your tax return"}, "about.subject"),
        ("hints", [{"text": "your tax return"}], "hints[0].text"),
        ("blob", "x" * 201, "blob"),
    ):
        assert wrong_fields({**VALID, field: value}) == [path]
    references = {"document_ids": [7, "doc_8"], "period": "2026-01", "pages": [1, 2], "flags": {"urgent": True}}
    assert wrong_fields({**VALID, **references}) == []


@pytest.mark.req("W3", "W4", "W5", "W7", "W12", "W64")
def test_the_example_payload_is_valid_and_each_required_field_counts() -> None:
    assert PayloadValidator.validate_payload(VALID, "ingestion") == (True, [])
    assert wrong_fields({"external_message_id": "msg_789"}) == [
        "connection_id",
        "correlation_id",
        "idempotency_key",
        "tenant_id",
    ], "all errors are reported, not only the first"
    for field, value in {
        "tenant_id": "123",
        "correlation_id": "not-a-uuid",
        "idempotency_key": 7,
        "connection_id": {"no": "id"},
    }.items():
        assert wrong_fields({**VALID, field: value}) == [field]
        assert wrong_fields({**VALID, field: None}) == [field]


@pytest.mark.req("W6", "W9", "W13", "W16", "W64")
def test_each_category_asks_for_its_own_reference_and_more_can_be_asked_for() -> None:
    bare = {name: value for name, value in VALID.items() if name not in ("connection_id", "external_message_id")}
    for category, reference in REFERENCES.items():
        assert wrong_fields(bare, category) == [reference]
        assert wrong_fields({**bare, reference: 7}, category) == []
        for prose in ("word " * 100, "Dear Ada", "two\nlines", "x" * 201):
            assert wrong_fields({**bare, reference: prose}, category) == [reference], "content is no reference"
    assert wrong_fields({**VALID, "external_message_id": "Dear Ada, see you soon"}) == ["external_message_id"]
    assert wrong_fields({**VALID, "mailbox_id": "in the cellar"}, more=("mailbox_id",)) == ["mailbox_id"]
    assert wrong_fields(VALID, more=("external_message_id",)) == []
    assert wrong_fields(VALID, more=("mailbox_id", "folder_id")) == ["folder_id", "mailbox_id"]
    assert not PayloadValidator.validate_payload(VALID, "gardening")[0]


@pytest.mark.req("W12")
@pytest.mark.parametrize("payload", [None, [VALID], "tenant_id=123", 7])
def test_what_is_no_object_is_reported_as_any_other_error(payload: Any) -> None:
    is_valid, errors = PayloadValidator.validate_payload(payload, "ingestion")
    assert not is_valid and len(errors) == 1 and "object" in errors[0]


@pytest.mark.req("W8", "W64")
@pytest.mark.parametrize(
    "sensitive",
    [
        {"password": "hunter2"},
        {"accessToken": "abc"},
        {"client_secret": "abc"},
        {"email_body": "Dear Ada"},
        {"document_content": "…"},
        {"html": "<p>hello</p>"},
        {"letter": {"ocr": {"text": "hello"}}},
        {"attachment": "aGVsbG8="},
        {"more": [{"smtp": {"password": "hunter2"}}]},
        {"remark": "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlLWhlcmU"},
        {"link": "postgres://ada:hunter2@db.example/practice"},
        # Whatever the value is: the name says that it has no place here.
        {"token": 493_817},
        {"smtp": {"secret": 7}},
        {"api_key": 20_260_101},
        {"body": 1},
        {"content": 2.5},
    ],
)
def test_secrets_and_content_have_no_place_in_a_payload(sensitive: dict[str, Any]) -> None:
    is_valid, errors = PayloadValidator.validate_payload({**VALID, **sensitive}, "ingestion")
    assert not is_valid and len(errors) == 1
    assert "hunter2" not in errors[0] and "eyJ" not in errors[0], "an error never repeats the secret"


@pytest.mark.req("W10", "W64")
def test_a_payload_has_at_most_ten_kilobytes_unless_its_category_says_otherwise() -> None:
    def sized(size: int) -> dict[str, Any]:
        ids: list[str] = []
        while (spare := size - len(msgspec.json.encode({**VALID, "document_ids": [*ids, ""]}))) > 0:
            ids.append("x" * min(spare, 100 if spare > 110 else spare))
        return {**VALID, "document_ids": ids}

    assert PAYLOAD_LIMIT == 10_240
    assert wrong_fields(sized(10_240)) == []
    assert wrong_fields(sized(10_241)) == ["payload"]
    larger = CATEGORIES["ingestion"].plus(Rules(limit=20_000))
    assert Dutiful().validate(larger, sized(20_000)) == []


@pytest.mark.req("W11", "W15")
def test_a_payload_is_made_of_references_with_its_version() -> None:
    correlation_id = uuid4()
    made = PayloadValidator.create_payload(123, correlation_id, "key", connection_id=456)
    assert made == {
        "tenant_id": 123,
        "correlation_id": str(correlation_id),
        "idempotency_key": "key",
        "payload_version": "1.0",
        "connection_id": 456,
    }
    assert wrong_fields(made) == []
    assert wrong_fields({**made, "payload_version": "7.0"}) == ["payload_version"]


@pytest.fixture
async def platform(app_url: str, tmp_path: Path) -> AsyncIterator[Practice]:
    async with practice(app_url, tmp_path) as made:
        yield made


@pytest.mark.req("W11", "W14", "W17", "W68")
async def test_no_entry_point_accepts_a_wrong_payload_and_each_reports_all_errors(platform: Practice) -> None:
    kind = platform.app.kind("email_ingestion_fetch")
    prose = "Dear Ada, here are the papers"
    wrong = {**VALID, "tenant_id": "123", "connection_id": None, "password": "hunter2", "external_message_id": prose}
    access: dict[str, Callable[[], Awaitable[Any]]] = {
        "queue": lambda: platform.queue().create(kind.name, wrong),
        "app": lambda: platform.app.enqueue(kind.name, wrong),
        "kind": lambda: kind.enqueue(**wrong),
        "many": lambda: kind.enqueue_many([VALID, wrong]),
    }
    for name, enter in access.items():
        with pytest.raises(PayloadInvalid) as caught:
            await enter()
        fields = {error.field for error in caught.value.errors}
        assert {"tenant_id", "connection_id", "password", "external_message_id"} <= fields, name
    with pytest.raises(PayloadInvalid):
        kind.sync.enqueue(**wrong)
    assert not list(await platform.app.jobs())

    unversioned = dict(VALID)
    job = await platform.queue().create(kind.name, unversioned)
    assert (job.payload_version, job.payload) == ("1.0", {**unversioned, "payload_version": "1.0"})
    assert job.correlation_id == UUID(VALID["correlation_id"])


@pytest.mark.req("W17", "W67")
async def test_a_firms_queue_takes_no_job_of_another_firm(platform: Practice) -> None:
    payload = PayloadValidator.create_payload(THERE, uuid4(), "key", connection_id=7, external_message_id="msg_1")
    with pytest.raises(PayloadInvalid, match="tenant"):
        await platform.queue(HERE).create("email_ingestion_fetch", payload)
    assert not list(await platform.app.jobs())


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
@pytest.mark.req("W17", "W25", "W26")
async def test_the_database_itself_refuses_what_comes_by_sql_and_breaks_the_rules(platform: Practice) -> None:
    await platform.app.migrate()  # as `dutiful migrate` with the app; no worker has started yet
    connection = await asyncpg.connect(platform.database_url)

    async def enqueue(payload: dict[str, Any]) -> UUID:
        text = msgspec.json.encode(payload).decode()
        job_id: UUID = await connection.fetchval("select dutiful.enqueue('email_ingestion_fetch', $1::jsonb)", text)
        return job_id

    try:
        for wrong in (
            {"tenant_id": 123},
            {**VALID, "payload_version": "7.0"},
            {**VALID, "note": "x" * 11_000},
            {**VALID, "tenant_id": "123"},
            {**VALID, "correlation_id": "no-uuid"},
            {**VALID, "connection_id": "the first one"},
            {**VALID, "external_message_id": "Dear Ada, here are the papers that you asked for"},
            {**VALID, "password": "hunter2"},
            {**VALID, "about": "Dear Ada, here are the papers that you asked for"},
        ):
            with pytest.raises(asyncpg.CheckViolationError):
                await enqueue(wrong)
        job = await platform.seen(await enqueue(VALID))
        assert (job.tenant, job.idempotency_key, job.payload_version) == (HERE, VALID["idempotency_key"], "1.0")
        with pytest.raises(asyncpg.PostgresError, match="unique"):
            await enqueue(VALID)
    finally:
        await connection.close()
    assert len(await platform.queue().list()) == 1
