"""Webhook messages by the Standard Webhooks specification: body, signatures, and the reaction to responses."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from http import HTTPStatus
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.errors import UsageError
from dutiful.core.json import clean
from dutiful.core.retry.backoff import read_retry_after, wait_from
from dutiful.core.states import FINAL, State

PREFIX = "whsec_"
SHORTEST_KEY, LONGEST_KEY = 24, 64
ERROR_LIMIT = 500
JITTER = 0.1
# The wait after each failed attempt; after the last, about three days later, the message is given up.
WAITS = tuple(timedelta(seconds=seconds) for seconds in (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400))
# Alerts are retried more often at first, because they are urgent and a pager that restarts is back in a minute.
ALERT_WAITS = (*(timedelta(seconds=seconds) for seconds in (5, 15, 30, 60, 120, 300, 600)), *WAITS[2:])
_GONE = 410
Uniform: TypeAlias = Callable[[float, float], float]


def message(event: str, at: datetime, job_id: UUID | None, data: Mapping[str, Any]) -> bytes:
    """The body of a message, the same for every attempt."""
    if job_id is not None:
        data = {**data, "id": ids.public(job_id), "job_id": str(job_id), "errors": data.get("errors") or []}
    return msgspec.json.encode({"type": event, "timestamp": at.astimezone(UTC), "data": data})


def headers(post_id: UUID, at: datetime, body: bytes, secrets: Iterable[str]) -> dict[str, str]:
    """The headers of one attempt, with a signature for each secret, so that a receiver can rotate them."""
    stamp = str(int(at.timestamp()))
    signed = f"{post_id}.{stamp}.".encode() + body
    digests = (hmac.digest(key_of(secret), signed, hashlib.sha256) for secret in secrets)
    return {
        "webhook-id": str(post_id),
        "webhook-timestamp": stamp,
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }


def new_secret(random: bytes) -> str:
    return PREFIX + base64.b64encode(random).decode()


def key_of(secret: str) -> bytes:
    """The key encoded by a secret; the UsageError for a malformed one never shows it."""
    text = secret.removeprefix(PREFIX) if isinstance(secret, str) else ""
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        key = b""
    if text == secret or not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        raise UsageError(
            f"a webhook secret is malformed: it must be {PREFIX} and the Base64 of {SHORTEST_KEY} to {LONGEST_KEY} "
            "bytes; make one with `dutiful webhooks secret`"
        )
    return key


def check_secrets(secrets: Sequence[str], what: str) -> None:
    """Refuses a webhook without a secret, because its receiver could not verify it."""
    if not secrets:
        raise UsageError(
            f"{what} needs a secret to sign with: make one with `dutiful webhooks secret`, and set webhook_secrets "
            "(DUTIFUL_WEBHOOK_SECRETS) to it"
        )


def check_states(states: Iterable[str] | None, what: str) -> list[str] | None:
    """The final states to report, in their usual order; None means all."""
    if states is None:
        return None
    named = {states} if isinstance(states, str) else set(states)
    final = [state.value for state in State if state in FINAL]
    if not named or not named <= set(final):
        raise UsageError(f"{what}: states {sorted(map(str, named))} must be some of: {', '.join(final)}")
    return [state for state in final if state in named]


class Receiver(msgspec.Struct, frozen=True):
    """The webhook of one job, instead of the declared ones."""

    url: str
    states: list[str] | None = None  # none: all


def read_receiver(value: Any) -> Receiver:
    """Reads the option `webhook`: a URL, or {"url", "states"}; the URL is checked when the job is stored."""
    match value:
        case Receiver():
            return value
        case str():
            return Receiver(value)
        case {"url": str(url), **rest} if set(rest) <= {"states"}:
            states: Any = rest.get("states")
            return Receiver(url, check_states(states, "webhook"))
    raise UsageError(f'webhook {value!r:.200} must be a URL, or {{"url": "https://…", "states": ["failed"]}}')


class WebhookResponse(msgspec.Struct, frozen=True):
    """A receiver's response."""

    status: int
    body: bytes = b""  # its beginning
    retry_after: str | None = None


class PostOutcome(StrEnum):
    """What happens to a message after an attempt."""

    DELIVERED = "delivered"
    RETRY = "retry"
    GIVEN_UP = "given_up"
    GONE = "gone"  # given up, and its receiver wants no more messages


@dataclass(frozen=True, slots=True)
class PostDecision:
    outcome: PostOutcome
    delay: timedelta | None = None
    error: str | None = None


def after_response(
    response: WebhookResponse, attempts: int, now: datetime, uniform: Uniform, waits: Sequence[timedelta] = WAITS
) -> PostDecision:
    """What a response means for a message that was tried `attempts` times."""
    if 200 <= response.status < 300:
        return PostDecision(PostOutcome.DELIVERED)
    error = _describe(response)
    if response.status == _GONE:
        return PostDecision(PostOutcome.GONE, error=error)
    asked = wait_from(now, read_retry_after(response.retry_after)) or timedelta(0)
    return after_error(error, attempts, uniform, waits, at_least=asked)


def after_error(
    error: str,
    attempts: int,
    uniform: Uniform,
    waits: Sequence[timedelta] = WAITS,
    *,
    at_least: timedelta = timedelta(0),
) -> PostDecision:
    """What happens after an error: another try after a wait, or none after the last one."""
    cut = clean(error, ERROR_LIMIT)
    if attempts > len(waits):
        return PostDecision(PostOutcome.GIVEN_UP, error=f"given up after {attempts} attempts: {cut}")
    wait = max(waits[max(attempts, 1) - 1], at_least)
    return PostDecision(PostOutcome.RETRY, wait * (1 + uniform(0, JITTER)), cut)


def give_up(error: str) -> PostDecision:
    return PostDecision(PostOutcome.GIVEN_UP, error=clean(error, ERROR_LIMIT))


def _describe(response: WebhookResponse) -> str:
    status = response.status
    try:
        shown = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        shown = str(status)
    if 300 <= status < 400:
        shown += " (redirects are not followed: give the final URL)"
    text = " ".join(response.body[:1_000].decode(errors="replace").split())
    return clean(f"it answered {shown}{f': {text}' if text else ''}", ERROR_LIMIT)
