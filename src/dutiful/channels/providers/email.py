"""Email by SMTP, with the standard library; a call is made in a thread."""

import re
import smtplib
import ssl
from contextlib import suppress
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from dutiful.channels.channels import ChannelCall
from dutiful.core.errors import UsageError
from dutiful.core.retry.classify import ErrorClass

PORTS = {"smtp": 25, "smtps": 465, "smtp+starttls": 587}
SOCKET_TIMEOUT = 30.0  # seconds for each step of the conversation
# Set by the message itself; a request cannot replace them.
_OWN = {"from", "to", "cc", "bcc", "subject", "date", "message-id", "mime-version", "reply-to", "sender"}
_OWN_PREFIXES = ("content-", "resent-")
_NAME = re.compile(r"[!-9;-~]+")
_FORMS = "smtp://host, smtps://user:password@host or smtp+starttls://user:password@host?from=shop@example.org"


class EmailRequest(msgspec.Struct, frozen=True):
    """What a before handler of the channel `email` returns as its payload."""

    to_address: str
    subject: str
    body: str
    html_body: str | None = None
    from_address: str | None = None
    reply_to: str | None = None
    headers: dict[str, str] = {}


class EmailRefused(Exception):
    """The message cannot be sent as it is; a new attempt would fail the same way."""

    error_class = ErrorClass.NON_RETRYABLE


class SmtpEmail:
    """Sends by the server of `url`: smtp:// (TLS if it is offered), smtps:// or smtp+starttls:// (TLS or nothing).

    The URL may have a login, and `?from=…`, the sender of messages that name none. A password is sent over TLS only.
    """

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        self._scheme, self._host, self._port, self._user, self._password, self._sender = _read_url(url)
        self._tls = tls

    def __call__(self, request: EmailRequest, call: ChannelCall) -> dict[str, str]:
        message = build_message(request, call.idempotency_key, self._sender)
        with self._connected() as server:
            # Named here, so that no header can add a recipient.
            server.send_message(message, *(message[header].addresses[0].addr_spec for header in ("From", "To")))
            with suppress(smtplib.SMTPException, OSError):  # the message was accepted, whatever comes now
                server.quit()
        return {"message_id": str(message["Message-ID"])}

    def _connected(self) -> "_Closing":
        if self._scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                self._host, self._port, timeout=SOCKET_TIMEOUT, context=self._context()
            )
        else:
            server = smtplib.SMTP(self._host, self._port, timeout=SOCKET_TIMEOUT)
        try:
            self._begin(server)
        except BaseException:
            server.close()
            raise
        return _Closing(server)

    def _begin(self, server: smtplib.SMTP) -> None:
        server.ehlo_or_helo_if_needed()
        encrypted = self._scheme == "smtps"
        if not encrypted and (self._scheme == "smtp+starttls" or server.has_extn("starttls")):
            server.starttls(context=self._context())
            server.ehlo()
            encrypted = True
        if self._user is not None:
            if not encrypted:
                raise EmailRefused(f"the mail server {self._host} offers no TLS, so the password is not sent to it")
            server.login(self._user, self._password or "")

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


class _Closing:
    """Closes the connection without the QUIT whose answer `with smtplib.SMTP(…)` waits for."""

    def __init__(self, server: smtplib.SMTP) -> None:
        self._server = server

    def __enter__(self) -> smtplib.SMTP:
        return self._server

    def __exit__(self, *_: object) -> None:
        self._server.close()


def build_message(request: EmailRequest, key: str, sender: str | None) -> EmailMessage:
    """The message; its Message-ID is the same for the same key, so that a second one can be recognised."""
    message = EmailMessage(policy=SMTP)
    from_address = request.from_address or sender
    if not from_address:
        raise EmailRefused("the message has no from_address: return one, or add ?from=… to smtp_url")
    try:
        message["From"] = from_address
        message["To"] = request.to_address
        message["Subject"] = request.subject
        if request.reply_to is not None:
            message["Reply-To"] = request.reply_to
        for name, value in request.headers.items():
            if not _NAME.fullmatch(name) or name.lower() in _OWN or name.lower().startswith(_OWN_PREFIXES):
                raise EmailRefused(
                    f"headers must not have {name!r}: it is no name, or one that the message sets itself"
                )
            message[name] = value
        domains = [_only_address(message, header).domain for header in ("To", "From")]
    except (MessageError, ValueError, IndexError) as error:
        raise EmailRefused(f"a header cannot be sent: {type(error).__name__}: {error}") from error
    message["Message-ID"] = f"<{key}@{domains[-1]}>"
    message.set_content(request.body)
    if request.html_body is not None:
        message.add_alternative(request.html_body, subtype="html")
    return message


def _only_address(message: EmailMessage, header: str) -> Address:
    addresses = message[header].addresses
    if len(addresses) != 1 or not addresses[0].username or not addresses[0].domain or message[header].defects:
        raise EmailRefused(f"the header {header} must be one address, as in ada@example.org")
    found: Address = addresses[0]
    return found


def _read_url(url: str) -> tuple[str, str, int, str | None, str | None, str | None]:
    """Its parts; an error repeats none of them, because one may be a password."""
    try:
        parts = urlsplit(url.strip())
        scheme, port = parts.scheme.lower(), parts.port
        senders = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise UsageError(f"smtp_url is no address of a mail server: write {_FORMS}") from None
    if scheme not in PORTS or not parts.hostname or parts.path not in ("", "/") or set(senders) - {"from"}:
        raise UsageError(f"smtp_url is no address of a mail server: write {_FORMS}")
    user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    return scheme, parts.hostname, port or PORTS[scheme], user, password, senders.get("from", [None])[0]
