"""Mail by SMTP against a real server: messages, refusals, and TLS with a certificate that is made for the tests."""

import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiosmtpd.smtp import AuthResult, LoginPassword
from channel_services import Mailbox, mail_server

from databases import missing
from dutiful.channels import ChannelCall, EmailRequest, SmtpEmail
from dutiful.channels.providers.email import EmailRefused
from dutiful.core.retry.error_info import describe

pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
CALL = ChannelCall(UUID(int=7), "the-key", 1)
MAIL = EmailRequest("ada@example.org", "Hello", "plain text", from_address="Shop <shop@example.com>")


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with mail_server() as box:
        yield box


def test_the_same_job_has_the_same_message_id(mailbox: Mailbox) -> None:
    send = SmtpEmail(mailbox.url)
    first, again = send(MAIL, CALL), send(MAIL, CALL)
    assert first == again == {"message_id": "<the-key@example.com>"}
    assert mailbox.recipients == [["ada@example.org"]] * 2
    assert {message["Message-ID"] for message in mailbox.messages} == {"<the-key@example.com>"}


def test_a_message_has_its_own_headers_and_any_language(mailbox: Mailbox) -> None:
    SmtpEmail(mailbox.url)(
        EmailRequest(
            "Ada <ada@example.org>", "Grüße", "Schöne Grüße\n" + "x" * 2000, from_address="shop@example.com",
            reply_to="help@example.com", headers={"List-Unsubscribe": "<https://example.com/u>"},
        ),
        CALL,
    )  # fmt: skip
    (message,) = mailbox.messages
    assert (message["Subject"], message["Reply-To"]) == ("Grüße", "help@example.com")
    assert message["List-Unsubscribe"] == "<https://example.com/u>"
    assert message.get_content().startswith("Schöne Grüße")


@pytest.mark.parametrize(
    "wrong",
    [
        {"to_address": "ada@example.org, bob@example.org"},
        {"to_address": "ada"},
        {"to_address": ""},
        {"to_address": "ada@example.org\r\nBcc: eve@example.org"},
        {"subject": "Hello\r\nBcc: eve@example.org"},
        {"from_address": None},
        {"from_address": "shop@example.com\nX: y"},
        {"headers": {"Bcc": "eve@example.org"}},
        {"headers": {"Content-Type": "text/html"}},
        {"headers": {"X-A": "1\r\nBcc: eve@example.org"}},
        {"headers": {"X A: b\r\nBcc": "eve@example.org"}},
        {"reply_to": "x\r\nBcc: eve@example.org"},
    ],
)
def test_a_message_that_would_go_elsewhere_is_refused(mailbox: Mailbox, wrong: dict[str, Any]) -> None:
    fields = {"to_address": "ada@example.org", "subject": "s", "body": "b", "from_address": "shop@example.com", **wrong}
    with pytest.raises(EmailRefused):
        SmtpEmail(mailbox.url)(EmailRequest(**fields), CALL)
    assert mailbox.recipients == []


def test_a_refusal_of_the_mail_server_is_an_error_with_its_class(mailbox: Mailbox) -> None:
    for reply, error_class in (("550 no such user", "non_retryable"), ("451 later", "transient")):
        mailbox.refuse = reply
        with pytest.raises(Exception, match="no such user|later") as raised:  # noqa: RUF043
            SmtpEmail(mailbox.url)(MAIL, CALL)
        assert describe(raised.value)["class"] == error_class
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(OSError):
            SmtpEmail(f"smtp://127.0.0.1:{closed.getsockname()[1]}")(MAIL, CALL)


def test_a_password_is_not_sent_without_tls(mailbox: Mailbox) -> None:
    url = mailbox.url.replace("smtp://", "smtp://ada:hunter2@")
    with pytest.raises(EmailRefused, match="offers no TLS") as raised:
        SmtpEmail(url)(MAIL, CALL)
    assert "hunter2" not in str(raised.value)
    with pytest.raises(Exception, match="STARTTLS"):
        SmtpEmail(mailbox.url.replace("smtp://", "smtp+starttls://"))(MAIL, CALL)
    assert mailbox.messages == []


# --- TLS


class Certificate:
    """A certificate of 127.0.0.1 that nothing trusts yet, and its key."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            missing("openssl is missing: apt-get install openssl")
        self.file, key = folder / "certificate.pem", folder / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", "/CN=dutiful test", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", str(key), "-out", str(self.file)],
            check=True, capture_output=True,
        )  # fmt: skip
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(self.file, key)

    @property
    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.file))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("tls"))


class Logins:
    """Lets ada in, and notes who came, and whether the connection was encrypted."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, bool]] = []

    def __call__(self, server: Any, session: Any, envelope: Any, mechanism: str, given: LoginPassword) -> AuthResult:
        self.seen.append((given.login, server.transport.get_extra_info("ssl_object") is not None))
        return AuthResult(success=(given.login, given.password) == (b"ada", b"hunter2"), handled=False)


@pytest.fixture(params=["smtps", "smtp+starttls", "smtp"])
def encrypted(request: pytest.FixtureRequest, certificate: Certificate) -> Iterator[tuple[Mailbox, Logins, str]]:
    """A mail server that accepts nothing without TLS and a login, and the scheme by which it is reached."""
    logins = Logins()
    tls = (
        {"ssl_context": certificate.server, "auth_require_tls": False}  # it does not know that all is encrypted
        if request.param == "smtps"
        else {"tls_context": certificate.server, "require_starttls": True}
    )
    with mail_server(authenticator=logins, auth_required=True, **tls) as box:
        box.url = box.url.replace("smtp://", f"{request.param}://ada:hunter2@")
        yield box, logins, request.param


def test_a_message_and_its_login_go_over_tls(
    encrypted: tuple[Mailbox, Logins, str], certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox, logins, _ = encrypted
    SmtpEmail(mailbox.url, tls=certificate.trusting)(MAIL, CALL)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))  # as for a worker whose mail server is the firm's own
    SmtpEmail(mailbox.url)(MAIL, CALL)

    assert mailbox.recipients == [["ada@example.org"]] * 2
    assert logins.seen == [(b"ada", True)] * 2


def test_a_certificate_that_is_not_trusted_or_of_another_host_gets_no_password(
    encrypted: tuple[Mailbox, Logins, str], certificate: Certificate
) -> None:
    mailbox, logins, _ = encrypted
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        SmtpEmail(mailbox.url)(MAIL, CALL)
    with pytest.raises(ssl.SSLCertVerificationError, match="localhost"):
        SmtpEmail(mailbox.url.replace("127.0.0.1", "localhost"), tls=certificate.trusting)(MAIL, CALL)
    assert (mailbox.messages, logins.seen) == ([], [])


def test_a_wrong_password_is_refused_and_not_repeated(
    encrypted: tuple[Mailbox, Logins, str], certificate: Certificate
) -> None:
    mailbox, logins, _ = encrypted
    with pytest.raises(Exception, match="535|Authentication") as raised:  # noqa: RUF043
        SmtpEmail(mailbox.url.replace("hunter2", "hunter3"), tls=certificate.trusting)(MAIL, CALL)
    assert "hunter3" not in str(raised.value) and logins.seen and mailbox.messages == []
