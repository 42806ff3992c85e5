"""The built-in providers from settings, and those of messages and files, against real services."""

import json
import socket
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from channel_services import HttpService, Mailbox, Request, http_service, mail_server
from channel_world import ChannelWorld, channel_world, serving

from databases import Postgres
from dutiful.channels import (
    ChannelCall,
    Channels,
    EmailRequest,
    FileDeletion,
    HttpFiles,
    HttpSms,
    SmsRequest,
)
from dutiful.core.retry.error_info import describe
from dutiful.settings import Settings

TOKEN = "s3cret-token"  # not in the line that raises, which a traceback shows
CALL = ChannelCall(UUID(int=7), "the-key", 1)
MAIL = EmailRequest("ada@example.org", "Hello", "plain text", from_address="Shop <shop@example.com>")
ATTEMPTS = """
create table if not exists comms.message (attempt_id bigint primary key, channel text, request jsonb);
"""


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with mail_server() as box:
        yield box


@pytest.fixture
def service() -> Iterator[HttpService]:
    with http_service() as found:
        yield found


@pytest.fixture(scope="module")
def world(postgres18: Postgres) -> Iterator[ChannelWorld]:
    with channel_world(postgres18) as made:
        yield made


# --- end to end


def storage(request: Request) -> tuple[int, Any]:
    """The files service and the storage in one: it signs addresses of its own."""
    if request.path == "/signed-urls":
        return 200, {
            "url": f"http://{request.headers['host']}/{request.body['bucket']}/{request.body['object_key']}?sig=s"
        }
    return 204, b""


@pytest.mark.req("S2", "S21", "S23", "S30", "S36", "S37", "S63")
async def test_email_sms_and_file_delete_run_from_settings(
    world: ChannelWorld, mailbox: Mailbox, service: HttpService
) -> None:
    requests = {
        "email": {"to_address": "ada@example.org", "subject": "Hi", "body": "text", "html_body": "<p>text</p>"},
        "sms": {"to_number": "+15550100", "body": "hi"},
        "file_delete": {"bucket": "uploads", "object_key": "a.png"},
    }
    world.run(ATTEMPTS)
    # It resolves the attempt's record; the payload of the job has nothing but ids and names.
    resolve = world.define(
        "resolve",
        "return (select jsonb_build_object('status', 'succeeded', 'payload', m.request)"
        " from comms.message m where m.attempt_id = (p ->> 'attempt_id')::bigint);",
    )
    with http_service(storage) as files:
        channels = Channels.from_settings(
            Settings(
                smtp_url=f"{mailbox.url}?from=shop@example.com",
                sms_url=f"{service.url}/messages",
                sms_token="sms-token",
                files_url=files.url,
                files_token="files-token",
            )
        )
        async with serving(world, channels):
            jobs = []
            for n, (channel, request) in enumerate(requests.items(), start=1):
                world.run("insert into comms.message values (%s, %s, %s::jsonb)", n, channel, json.dumps(request))
                jobs.append(world.send(channel, n, before_handler=resolve))
            rows = await world.ended(*jobs)

    assert [row["errors"] for row in rows] == [None, None, None]
    assert world.facts() == ([1, 2, 3], [])
    (message,) = mailbox.messages
    assert (message["To"], message["From"], message["Subject"]) == ("ada@example.org", "shop@example.com", "Hi")
    assert message["Message-ID"] == f"<{jobs[0]}@example.com>"
    assert [part.get_content().strip() for part in message.iter_parts()] == ["text", "<p>text</p>"]
    (sms,) = service.requests
    assert (sms.path, sms.body) == ("/messages", requests["sms"])
    assert (sms.headers["authorization"], sms.headers["idempotency-key"]) == ("Bearer sms-token", str(jobs[1]))
    signed, deleted = files.requests
    assert signed.body == {"method": "DELETE", **requests["file_delete"]}
    assert signed.headers["authorization"] == "Bearer files-token"
    assert (deleted.method, deleted.path) == (
        "DELETE",
        "/uploads/a.png?sig=s",
    ) and "authorization" not in deleted.headers
    provided = [p["worker_payload"] for p in world.payloads("success")]
    assert {"id": "m1"} in provided and {"deleted": True, "existed": True} in provided
    assert {"message_id": f"<{jobs[0]}@example.com>"} in provided


# --- http


@pytest.mark.parametrize(
    ("status", "answer", "error_class"),
    [
        (500, {"why": "token=abcdefgh12345678"}, "transient"),
        (429, b"slow down", "rate_limited"),
        (400, b"", "non_retryable"),
        (302, b"", "retryable"),
    ],
)
def test_an_answer_that_is_no_success_is_an_error_with_its_class(status: int, answer: Any, error_class: str) -> None:
    with http_service(lambda request: (status, answer)) as service:
        for call in (
            lambda: HttpSms(service.url, TOKEN)(SmsRequest("+1", "hi"), CALL),
            lambda: HttpFiles(service.url, TOKEN)(FileDeletion("b", "k"), CALL),
        ):
            with pytest.raises(Exception, match=str(status)) as raised:
                call()
            error = describe(raised.value)
            assert error["class"] == error_class
            assert TOKEN not in str(error) and "abcdefgh12345678" not in str(error)


@pytest.mark.parametrize(
    ("answer", "returned"),
    [({"id": 1}, {"id": 1}), (b"", None), (b"thanks", None), (b'"' + b"x" * 100_000 + b'"', None)],
)
def test_an_answer_without_usable_json_is_accepted_all_the_same(answer: Any, returned: Any) -> None:
    with http_service(lambda request: (201, answer)) as service:
        assert HttpSms(service.url)(SmsRequest("+1", "hi"), CALL) == returned
        assert "authorization" not in service.requests[0].headers


@pytest.mark.parametrize("answer", [b"", b"[]", {"url": 5}, {"url": "file:///etc/passwd"}, {"link": "http://x"}])
def test_a_files_service_that_signs_nothing_is_an_error(answer: Any) -> None:
    with http_service(lambda request: (200, answer)) as service, pytest.raises(Exception, match="without"):
        HttpFiles(service.url)(FileDeletion("b", "k"), CALL)


@pytest.mark.parametrize(("status", "existed"), [(204, True), (200, True), (404, False), (410, False)])
def test_a_file_that_is_gone_counts_as_deleted(status: int, existed: bool) -> None:
    def reply(request: Request) -> tuple[int, Any]:
        return (status, b"") if request.method == "DELETE" else storage(request)

    with http_service(reply) as service:
        assert HttpFiles(service.url + "/")(FileDeletion("b", "k"), CALL) == {"deleted": True, "existed": existed}
        assert [request.path for request in service.requests] == ["/signed-urls", "/b/k?sig=s"]


def test_a_file_whose_bucket_does_not_exist_does_not_count_as_deleted() -> None:
    missing = b"<Error><Code>NoSuchBucket</Code></Error>"
    reply = lambda request: (404, missing) if request.method == "DELETE" else storage(request)  # noqa: E731
    with http_service(reply) as service, pytest.raises(Exception, match="404: there is no bucket 'b'"):
        HttpFiles(service.url)(FileDeletion("b", "k"), CALL)


def test_an_error_of_the_storage_has_no_signature_in_it(service: HttpService) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/b?X-Signature=hunter2hunter2"
        service.reply = lambda request: (200, {"url": address})
        with pytest.raises(ConnectionError, match="the storage could not be reached") as raised:
            HttpFiles(service.url)(FileDeletion("b", "k"), CALL)
    assert "hunter2" not in str(describe(raised.value))
    service.reply = lambda request: (403, b"") if request.method == "DELETE" else storage(request)
    with pytest.raises(Exception, match="the storage answered 403"):
        HttpFiles(service.url)(FileDeletion("b", "k"), CALL)
