"""People with recordings, and messages to them."""

from dataclasses import dataclass
from typing import Any

from examples.accounts.services import Services


@dataclass(frozen=True)
class Account:
    account_id: int
    files: tuple[int, ...]


async def new_account(db: Any, services: Services, name: str, *, bucket: str = "recordings", takes: int = 2) -> Account:
    """An account with a profile, a cue, upload intents and finished uploads, whose objects are in the store."""
    account = await db.fetchval(
        "insert into accounts.account (email_address, phone_number) values ($1, '+358401234567') returning account_id",
        f"{name}@example.org",
    )
    profile = await db.fetchval(
        "insert into accounts.profile (account_id, display_name) values ($1, $2) returning profile_id", account, name
    )
    cue = await db.fetchval("insert into learning.cue (prompt) values ('Say hello') returning cue_id")
    files = []
    for take in range(1, takes + 1):
        key = f"account-{account}/take {take}.ogg"
        intent = await db.fetchval(
            "insert into files.upload_intent (account_id, bucket, object_key) values ($1, $2, $3)"
            " returning upload_intent_id", account, bucket, key,
        )  # fmt: skip
        if bucket in services.buckets:
            services.buckets[bucket][key] = b"OggS"
        file = await db.fetchval('select files.finish_upload($1, \'{"type": "audio/ogg"}\')', intent)
        await db.execute("insert into learning.profile_cue_recording values ($1, $2, $3)", profile, cue, file)
        files.append(file)
    return Account(account, tuple(files))


async def send_email(db: Any, address: str) -> int:
    """Writes a message and begins to send it; returns the message."""
    message: int = await db.fetchval(
        "insert into comms.email_message (to_address, subject, body) values ($1, 'Your recordings', 'They are safe.')"
        " returning email_message_id", address,
    )  # fmt: skip
    refused = await db.fetchval("select comms.kickoff_send_email($1)", message)
    assert refused is None, refused
    return message


async def send_sms(db: Any, number: str) -> int:
    message: int = await db.fetchval(
        "insert into comms.sms_message (to_number, body) values ($1, 'Your recordings are safe.')"
        " returning sms_message_id", number,
    )  # fmt: skip
    refused = await db.fetchval("select comms.kickoff_send_sms($1)", message)
    assert refused is None, refused
    return message
