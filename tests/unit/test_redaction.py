"""What is a secret, and what only looks like one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.redaction import sensitive_names
from dutiful.core.redaction.redact import redact, secret_in, secret_in_name
from dutiful.core.redaction.sensitive_names import meaning

# Written in two parts, so that a search for secrets finds none in this file.
SECRETS = {
    "a JWT": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "a private key": "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEpAIBAAKCAQEA75\n-----END RSA PRIVATE KEY-----",
    "an AWS key": "AKIA" + "IOSFODNN7EXAMPLE",
    "a GitHub token": "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a",
    "a GitLab token": "glpat-" + "x1Y2z3A4b5C6d7E8f9G0",
    "a Slack token": "xoxb-" + "123456789012-abcdefGHIJKL",
    "a Slack webhook": "https://hooks.slack.com/services/" + "T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
    "a Stripe key": "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "a webhook secret": "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "a Google key": "AIza" + "SyDaGmWKa4JsXZ-HjGw7ISLn_3namBGewQe",
    "a SendGrid key": "SG." + "ngeVfQFYQlKU0ufo8x5d1A.TwL2iGABf9DHoTf-09kqeF8tAmbihYzrnopKc-1s5cr",
    "an API key": "sk-" + "proj-abcDEF123456ghiJKL789mnoPQR",
    "a bearer token": "Bearer " + "mF_9.B5f-4.1JqM",
    "a password": "Basic " + "dXNlcjpwYXNzd29yZA==",
    "a URL with a password": "postgres://app:" + "hunter2@db.internal/app",
    "a card number": "4111 1111 " + "1111 1111",
    "an AWS secret key": "aws wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY",
    "a Vault token": "hvs." + "CAESIJlU9JMYEhOPYv4igdhm9PnZDrabYTobQ4Ymnlq1qY-",
    "a Telegram token": "110201543:AA" + "HdqTcvCH1vGWJxfSeofSAs0K5PALDsawx",
    "a signed URL": "X-Amz-Signature=" + "9f86d081884c7d65" * 4,
}
CARDS = ["4111111111111111", "5555-5555-5555-4444", "3782 822463 10005", "6011111111111117", "2223003122003222"]
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["N", "L"], exclude_characters="_"), max_size=30)


@pytest.mark.req("W8")
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_known_by_its_shape_wherever_it_stands(name: str) -> None:
    secret = SECRETS[name]
    assert secret_in(secret) == name
    assert secret_in(f"got {secret} from the vault") == name
    assert secret.split()[-1].split("@")[0].split(":")[-1] not in redact(f"got ({secret}), sorry")


@pytest.mark.req("W8")
@pytest.mark.parametrize("card", CARDS)
def test_a_card_number_is_known_by_its_issuer_and_its_check_digit(card: str) -> None:
    assert secret_in(f"paid with {card}") == "a card number"
    wrong = card[:-1] + str((int(card[-1]) + 1) % 10)
    assert secret_in(f"paid with {wrong}") is None


@pytest.mark.parametrize(
    "text",
    [
        "550e8400-e29b-41d4-a716-446655440000",
        "email_fetch_conn_456_msg_789",
        "1735557600123",
        "9" * 16,
        "0.4111111111111111",
        "order_4111111111111111",
        "3f786850e387550fdab836ed7e6dc881de23001b",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgVE2upms",
        "AAMkAGI2TG93AAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "eyJpZCI6MTIzfQ",
        "https://example.com:8080/a@b",
        "https://app:***@example.com",
        "task-management-for-the-second-quarter-of-2026",
        "bearer instruments",
        "basic information about accounts",
        "Unexpected token: comma",
        "KeyError: 'token'",
        "max_tokens=4096",
        "password=$PASSWORD",
        "password=${PASSWORD}",
        "token=%(token)s and {token}",
        "call +4111111111111111",
        "EAN 4902778916117",
        "sk-learn-models-of-the-year-2026-final",
        "docker run -u 1000:1000",
    ],
)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    assert secret_in(text) is None
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("login(user='ada', password='hun\\'ter2')", "login(user='ada', password='[redacted]')"),
        ('{"api_key": "abc", "n": 1}', '{"api_key": "[redacted]", "n": 1}'),
        ("GET /reset?access_token=abc123&page=2", "GET /reset?access_token=[redacted]&page=2"),
        ("Cookie: a=b; c=d\nHost: x", "Cookie: [redacted]\nHost: x"),
        ("host=db password=hunter2 dbname=app", "host=db password=[redacted] dbname=app"),
        ("X-Api-Key: abcdef", "X-Api-Key: [redacted]"),
        ("postgres://app:p@ss@db/app", "postgres://app:[redacted]@db/app"),
        ("token = get_token(request)", "token = get_token(request)"),
        ("password=environ['PW']", "password=environ['PW']"),
        ("password=$uper5ecret", "password=[redacted]"),
        ("PASSWORD=abc(def9", "PASSWORD=[redacted]"),
        ("connect(password=hunter2)", "connect(password=[redacted])"),
        ("password=(hunter2)", "password=([redacted])"),
        ("postgresql://bob:p/ss9@db/x", "postgresql://bob:[redacted]@db/x"),
        ("git clone https://a1b2c3d4e5f6a7b8c9d0@example.org/x", "git clone https://[redacted]@example.org/x"),
        ("Key (tenant, token)=(1, f3a9) already exists.", "Key (tenant, token)=([redacted]) already exists."),
        ("<password>hunter2</password>", "<password>[redacted]</password>"),
        ("run --password hunter2 --force", "run --password [redacted] --force"),
        ("curl -u bob:hunter2 https://x", "curl -u bob:[redacted] https://x"),
        ("[('password', 'hunter2')]", "[('password', '[redacted]')]"),
        ("db:\n  password: |\n    hunter2\n", "db:\n  password: |\n    [redacted]\n"),
        ("pass\u200bword=hunter2", "password=[redacted]"),
        ("paid by 4111\u00a01111\u00a01111\u00a01111", "paid by [redacted]"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
        ("def f(password: str, token=None)", "def f(password: str, token=None)"),
        (
            "Command '['mysql', '--password', 'hunter2']' failed",
            "Command '['mysql', '--password', '[redacted]']' failed",
        ),
        ('{"name": "password", "value": "hunter2"}', '{"name": "password", "value": "[redacted]"}'),
        (r'{\"key\": \"API_KEY\", \"value\": \"hunter2"}', r'{\"key\": \"API_KEY\", \"value\": \"[redacted]"}'),
        (f"GET /a?sp=r&sig={'Ab1%2F' * 9}&sv=2022", "GET /a?sp=r&sig=[redacted]&sv=2022"),
        ("pa\u00ad\u034fss\ufe0fword=hunter2", "password=[redacted]"),
        ("\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44\uff1dhunter2", "password=[redacted]"),
        (r"no kind 'pass\u200bword=hunter2'", r"no kind 'password=[redacted]'"),
        ("pass\x01word=hunter2", "password=[redacted]"),
        ("a\u2028password: hunter2", "a\npassword: [redacted]"),
        (r"C:\new\u00e9\x41", r"C:\new\u00e9\x41"),
    ],
)
def test_the_value_of_a_secret_name_is_taken_out_of_a_text(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(expected) == expected


@pytest.mark.req("W8")
@pytest.mark.parametrize(
    "text",
    ["sk-ant-api03-" + "aB3-" * 20, "login: bob\npassword: hunter2", "<api_key>abcd1234</api_key>", "--token abcd1234"],
)
def test_what_is_surely_a_secret_is_refused(text: str) -> None:
    assert secret_in(text) is not None


@pytest.mark.req("W8")
def test_a_bare_number_is_a_card_only_where_there_is_talk_of_one() -> None:
    number = "4111111111111111"
    assert secret_in(f"order {number} shipped") is None
    assert secret_in(number, card=True) == secret_in(f"card: {number}") == "a card number"
    # To take one too many out of an error does no harm.
    assert redact(f"order {number} shipped") == "order [redacted] shipped"


@pytest.mark.req("W8")
@given(secret=st.sampled_from(list(SECRETS.values())), before=TEXTS, after=TEXTS)
def test_no_surroundings_hide_a_secret(secret: str, before: str, after: str) -> None:
    text = f"{before} {secret} {after}"
    assert secret_in(text) is not None
    assert secret not in redact(text)


@given(st.text())
def test_any_text_can_be_redacted(text: str) -> None:
    redact(text)
    secret_in(text)
    meaning(text)


@pytest.mark.req("W8")
@pytest.mark.parametrize(
    "name",
    ["password", "Passwd", "userPassword", "password2", "new_password", "password_hash", "api_key", "apiKey",
     "APIKey", "X-API-Key", "token", "accessToken", "refresh-token", "tokens", "token_value", "secret",
     "client_secret", "secrets", "Authorization", "private_key", "privateKey", "secret_access_key", "cookie",
     "Set-Cookie", "credentials", "body", "email_body", "bodyHtml", "messageBody", "document_content",
     "fileContents", "content", "file_data", "\uff54oken", "imap_pass", "mysqlPass", "pw", "authorisation",
     "api_key_prod", "apiKeyV2", "document_base64", "attachment_b64", "raw_message", "eml"],
)  # fmt: skip
def test_a_name_shows_that_its_value_is_sensitive(name: str) -> None:
    assert meaning(name) is not None


@pytest.mark.req("W8")
@pytest.mark.parametrize(
    "name",
    ["token_count", "max_tokens", "tokenizer", "token_id", "token_type", "body_part_id", "governing_body",
     "secretary_id", "secretariat", "content_type", "content_hash", "contents_page", "table_of_contents",
     "idempotency_key", "public_key", "key", "access_key_id", "authorized_by", "author", "cookie_consent",
     "password_changed_at", "has_password", "include_body", "passenger_id", "boarding_pass", "compass",
     "session_id", "page_token", "next_page_token", "syncToken", "continuation_token", "prior_authorization",
     "bus_pass", "connection_id", "external_message_id", "tenant_id", "correlation_id", "payload_version", ""],
)  # fmt: skip
def test_a_name_that_only_sounds_alike_is_harmless(name: str) -> None:
    assert meaning(name) is None


# --- the cost of many names


def test_names_without_a_cue_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str | None:
        raise AssertionError("taken apart")

    monkeypatch.setattr(sensitive_names, "_meaning", fails)
    names = [
        f"{first}{second}Of{number}" for number in range(100) for first in ("row", "big") for second in ("Id", "No")
    ]

    assert {sensitive_names.meaning(name) for name in names} == {None}


def test_every_name_that_means_anything_has_a_cue() -> None:
    known = {*sensitive_names.MEANINGS, *sensitive_names.WHOLE, *sensitive_names.INNER, *sensitive_names._CARDS}

    assert [name for name in known if not any(cue in name for cue in sensitive_names.CUES)] == []


@given(st.text("aAbBzZ09_-. ", max_size=12))
def test_a_plain_name_has_the_same_words_as_any_other(name: str) -> None:
    """Those of ASCII are found in one step; a letter beyond it takes the other way."""
    assert sensitive_names.FieldName(name).words == sensitive_names.FieldName(f"{name} ä").words[:-1]


def test_words_are_still_searched_for_secrets_without_a_sign() -> None:
    assert secret_in_name("x-" + "AKIA" + "IOSFODNN7EXAMPLE") == "an AWS key"
    assert secret_in_name("ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a") == "a GitHub token"


def test_a_pair_that_is_printed_as_a_list_is_covered() -> None:
    assert redact('[["user", "ada"], ["password", "hunter2"]]') == '[["user", "ada"], ["password", "[redacted]"]]'
