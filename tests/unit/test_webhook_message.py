"""What a webhook says and how it is signed, verified by a library that is not ours; and what answers mean."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from uuid import uuid4

import msgspec
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from dutiful import Dutiful, UsageError
from dutiful.core import ids
from dutiful.core.webhooks.message import (
    ALERT_WAITS,
    WAITS,
    PostDecision,
    PostOutcome,
    Receiver,
    WebhookResponse,
    after_error,
    after_response,
    check_states,
    give_up,
    headers,
    key_of,
    message,
    new_secret,
    read_receiver,
)
from dutiful.settings import load

OLD, NEW, OTHER = (new_secret(bytes([n]) * 32) for n in (1, 2, 3))
NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def low(low: float, high: float) -> float:
    return low


def verify(secret: str, body: bytes, signed: dict[str, str]) -> None:
    Webhook(secret).verify(body, signed)


def test_a_message_says_what_happened_to_which_job() -> None:
    job = uuid4()
    body = message("job.completed", NOW, job, {"id": str(job), "kind": "greet", "result": {"ä": [1, None]}})
    assert msgspec.json.decode(body) == {
        "type": "job.completed",
        "timestamp": "2030-01-01T12:00:00Z",
        "data": {"id": ids.public(job), "job_id": str(job), "kind": "greet", "result": {"ä": [1, None]}, "errors": []},
    }


def test_a_signature_convinces_a_receiver_that_knows_the_secret_and_no_other() -> None:
    body = message("job.failed", NOW, uuid4(), {"errors": [{"message": "größer"}]})
    signed = headers(uuid4(), datetime.now(UTC), body, [NEW])
    verify(NEW, body, signed)
    for secret, changed in ((OTHER, body), (NEW, body.replace(b"failed", b"passed"))):
        with pytest.raises(WebhookVerificationError):
            verify(secret, changed, signed)
    with pytest.raises(WebhookVerificationError):
        verify(NEW, body, {**signed, "webhook-id": str(uuid4())})


def test_while_secrets_change_a_receiver_may_know_either() -> None:
    body = message("job.completed", NOW, uuid4(), {})
    signed = headers(uuid4(), datetime.now(UTC), body, [NEW, OLD])
    verify(NEW, body, signed)
    verify(OLD, body, signed)
    with pytest.raises(WebhookVerificationError):
        verify(OTHER, body, signed)


@pytest.mark.parametrize("length", [24, 64])
def test_a_key_has_24_to_64_bytes(length: int) -> None:
    key = bytes(range(length))
    assert key_of(new_secret(key)) == key


@pytest.mark.parametrize(
    "secret",
    ["hunter2", OLD[6:], "whsec_!!!", f"{OLD[:20]}!{OLD[20:]}", new_secret(b"x" * 23), new_secret(b"x" * 65)],
)
def test_a_malformed_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(UsageError, match="dutiful webhooks secret") as refused:
        key_of(secret)
    assert secret.removeprefix("whsec_") not in str(refused.value)


@pytest.mark.parametrize("secret", ["", "whsec_"])
def test_an_empty_secret_is_refused(secret: str) -> None:
    with pytest.raises(UsageError, match="dutiful webhooks secret"):
        key_of(secret)


def test_secrets_come_from_settings_and_stay_out_of_sight() -> None:
    settings = load({"webhook_secrets": f"{NEW}, {OLD}"})
    assert settings.webhook_secrets == (NEW, OLD) and NEW not in repr(settings)
    assert load({"webhook_secrets": [NEW]}).webhook_secrets == (NEW,)
    with pytest.raises(UsageError, match="malformed"):
        load({"webhook_secrets": "secret"})
    with pytest.raises(UsageError, match=r"webhook_networks: .*10\.1\.0\.0/16"):
        load({"webhook_networks": "intranet"})


async def test_without_a_secret_there_is_no_webhook() -> None:
    app = Dutiful("sqlite:///never.db")

    @app.job
    async def work() -> None: ...

    with pytest.raises(UsageError, match=r"webhook all needs a secret.*dutiful webhooks secret"):
        app.webhook("all", "https://example.com/")
    with pytest.raises(UsageError, match="option webhook needs a secret"):
        await work.options(webhook="https://example.com/").enqueue()
    assert app.webhook("own", "https://example.com/", secrets=NEW, kinds=[work]).kinds == ["work"]


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        (None, None),
        ("failed", ["failed"]),
        (["failed", "completed", "failed"], ["completed", "failed"]),
        (
            ["cancelled", "failed", "completed_with_errors", "completed"],
            ["completed", "completed_with_errors", "failed", "cancelled"],
        ),
    ],
)
def test_the_states_to_report_are_kept_once_and_in_their_usual_order(
    states: str | list[str] | None, kept: list[str] | None
) -> None:
    assert check_states(states, "webhook all") == kept
    assert read_receiver({"url": "https://example.com/", "states": states}) == Receiver("https://example.com/", kept)


@pytest.mark.parametrize("states", [[], "running", ["failed", "ready"]])
def test_a_state_that_is_not_final_or_none_at_all_is_refused(states: str | list[str]) -> None:
    with pytest.raises(UsageError, match=r"webhook all: states .* must be some of: completed, completed_with_errors"):
        check_states(states, "webhook all")


def test_a_receiver_is_read_from_a_url_or_an_object_and_from_itself() -> None:
    receiver = Receiver("https://example.com/", ["failed"])
    assert read_receiver(receiver) is receiver
    assert read_receiver("https://example.com/") == read_receiver({"url": "https://example.com/"})
    for wrong in ({"url": "https://example.com/", "secret": "x"}, {"url": 1}, {"states": ["failed"]}, 5, None):
        with pytest.raises(UsageError, match="must be a URL, or"):
            read_receiver(wrong)


@pytest.mark.parametrize(
    ("outcome", "statuses"),
    [
        (PostOutcome.DELIVERED, (200, 204, 299)),
        (PostOutcome.RETRY, (199, 300, 301, 307, 400, 404, 429, 500, 799)),
        (PostOutcome.GONE, (410,)),
    ],
)
def test_only_a_2xx_is_a_delivery_and_only_a_410_ends_the_webhook(
    outcome: PostOutcome, statuses: tuple[int, ...]
) -> None:
    for status in statuses:
        decision = after_response(WebhookResponse(status), 1, NOW, low)
        assert decision.outcome is outcome and (decision.error is None) == (outcome is PostOutcome.DELIVERED)


def test_it_is_tried_ten_times_over_days_and_then_given_up() -> None:
    decisions = [after_response(WebhookResponse(500), attempt, NOW, low) for attempt in range(1, 11)]
    assert [decision.delay for decision in decisions] == [*WAITS, None]
    assert decisions[-1].outcome is PostOutcome.GIVEN_UP and "after 10 attempts" in (decisions[-1].error or "")
    assert timedelta(days=3) < sum(WAITS, timedelta(0)) < timedelta(days=4)
    assert after_error("no", 1, lambda low, high: high).delay == timedelta(seconds=5.5)


def test_the_waits_grow_from_seconds_to_a_day() -> None:
    second, minute, hour = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
    hours = [2 * hour, 5 * hour, 10 * hour, 14 * hour, 20 * hour, 24 * hour]
    assert list(WAITS) == [5 * second, 5 * minute, 30 * minute, *hours]
    first = [5 * second, 15 * second, 30 * second, minute, 2 * minute, 5 * minute, 10 * minute]
    assert list(ALERT_WAITS) == [*first, 30 * minute, *hours]
    assert sum(ALERT_WAITS[:5], timedelta(0)) < 4 * minute, "five retries within four minutes"


def test_a_message_that_was_never_counted_waits_as_after_its_first_attempt() -> None:
    """Its row may have been inserted by SQL."""
    assert after_error("no", 0, low).delay == WAITS[0]


def test_what_is_given_up_at_once_says_why_in_a_short_text() -> None:
    assert give_up("the URL is refused") == PostDecision(PostOutcome.GIVEN_UP, error="the URL is refused")
    assert give_up("x" * 500).error == "x" * 500
    assert give_up("x" * 501).error == "x" * 500 + "… (501 characters in all)"


def test_an_alert_is_tried_many_times_in_its_first_minutes_and_for_as_many_days() -> None:
    count = len(ALERT_WAITS)
    decisions = [
        after_response(WebhookResponse(500), attempt, NOW, low, ALERT_WAITS) for attempt in range(1, count + 2)
    ]
    assert [decision.delay for decision in decisions] == [*ALERT_WAITS, None]
    assert sum(ALERT_WAITS[:4], timedelta(0)) < timedelta(minutes=2)
    assert timedelta(days=3) < sum(ALERT_WAITS, timedelta(0)) < timedelta(days=4)
    assert list(ALERT_WAITS) == sorted(ALERT_WAITS)


@pytest.mark.parametrize(
    ("asked", "delay"),
    [
        ("120", timedelta(minutes=2)),
        ("0", WAITS[0]),
        ("9" * 30, DAY),
        (format_datetime(NOW + timedelta(hours=1), usegmt=True), timedelta(hours=1)),
        (format_datetime(NOW - timedelta(hours=1), usegmt=True), WAITS[0]),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DAY),
        ("soon", WAITS[0]),
        ("-5", WAITS[0]),
        ("١٢", WAITS[0]),
        (None, WAITS[0]),
    ],
)
def test_a_receiver_may_ask_for_more_time_up_to_a_day(asked: str | None, delay: timedelta) -> None:
    assert after_response(WebhookResponse(503, retry_after=asked), 1, NOW, low).delay == delay


def test_an_answer_is_kept_as_a_short_and_clean_text() -> None:
    error = after_response(WebhookResponse(500, b"\xff\0oops\n" + b"x" * 10_000), 1, NOW, low).error
    assert error is not None and error.startswith("it answered 500 Internal Server Error: ") and "\0" not in error
    assert len(error) < 600


@pytest.mark.parametrize(("status", "is_redirect"), [(299, False), (300, True), (399, True), (400, False)])
def test_a_receiver_that_redirects_is_told_to_give_its_final_url(status: int, is_redirect: bool) -> None:
    error = after_response(WebhookResponse(status), 1, NOW, low).error or ""
    assert ("redirects are not followed: give the final URL" in error) is is_redirect
