"""Incoming mail: fetched, then parsed and assigned to the client who wrote it."""

import asyncio
import email
import email.policy
import email.utils
import mailbox
from typing import Any
from urllib.parse import quote

from dutiful import Context, Fail, Inject
from examples.practice.firms import Firm
from examples.practice.platform import Platform


class Unreadable(Fail):
    """The message cannot be parsed until a person fixes it."""


async def email_ingestion_fetch(
    ctx: Context, connection_id: int, external_message_id: str, platform: Platform = Inject("platform")
) -> dict[str, Any]:
    """Fetches a message from the mail server, unchanged."""
    scope = platform.scope(ctx)
    scope.get("connection", id=connection_id)  # of this firm: the mail server knows no firms
    name = quote(external_message_id, safe="")  # one step of the path, also with a slash in it
    answer = await platform.http.get(f"{platform.addresses.mail}/{connection_id}/{name}")
    answer.raise_for_status()  # 429 is rate_limited with a time to retry, 5xx transient, 404 non_retryable
    known = {"connection_id": connection_id, "external_id": external_message_id}
    if scope.firm.one("message", **known) is None:
        key = await asyncio.to_thread(keep, scope.firm, connection_id, answer.content)
        scope.firm.run("add_message", **known, maildir_key=key)
    await scope.follow_up(
        "email_ingestion_parse",
        f"email_parse_conn_{connection_id}_{external_message_id}",
        connection_id=connection_id,
        external_message_id=external_message_id,
    )
    return {"bytes": len(answer.content)}


async def email_ingestion_parse(
    ctx: Context, connection_id: int, external_message_id: str, platform: Platform = Inject("platform")
) -> dict[str, Any]:
    """Parses a message, stores sender and subject, and assigns it to a client."""
    scope = platform.scope(ctx)
    row = scope.get("message", connection_id=connection_id, external_id=external_message_id)
    raw = await asyncio.to_thread(maildir(scope.firm, connection_id).get_bytes, row["maildir_key"])
    sender, subject = _read(raw, external_message_id)
    client = scope.firm.one("client_at", address=sender)
    client_id = None if client is None else client["id"]
    scope.firm.run("read_message", id=row["id"], sender=sender, subject=subject, client_id=client_id)
    return {"message_id": row["id"], "client_id": client_id}


def maildir(firm: Firm, connection_id: int) -> mailbox.Maildir:
    folder = firm.folder / f"mail-{connection_id}"
    for part in ("tmp", "new", "cur"):  # several jobs may be the first
        (folder / part).mkdir(parents=True, exist_ok=True)
    return mailbox.Maildir(folder, create=False)


def keep(firm: Firm, connection_id: int, raw: bytes) -> str:
    return maildir(firm, connection_id).add(raw)


def _read(raw: bytes, name: str) -> tuple[str, str]:
    message = email.message_from_bytes(raw, policy=email.policy.default)
    sender = email.utils.parseaddr(str(message["From"] or ""))[1].lower()
    if "@" not in sender:
        raise Unreadable(f"message {name} does not say who wrote it: it has no usable From")
    if message.is_multipart() is False and message.get_content_maintype() == "multipart":
        raise Unreadable(f"message {name} says that it has parts, and has none: its boundary is missing")
    return sender, str(message["Subject"] or "(no subject)")
