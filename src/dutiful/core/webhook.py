"""A webhook's message, as Standard Webhooks has it: what it says, how it is signed, and what an answer to it means."""

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
from dutiful.core.payload import clean
from dutiful.core.retry_after import read_retry_after, wait_from
from dutiful.core.transitions import FINAL, State

PREFIX = "whsec_"
SHORTEST_KEY, LONGEST_KEY = 24, 64
ERROR_LIMIT = 500
LONGEST_WAIT = timedelta(hours=24)
JITTER = 0.1
# How long to wait after each failed attempt; when there is none left, it is given up, three days after the first.
WAITS = tuple(timedelta(seconds=seconds) for seconds in (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400))
# Of an alert, more closely at first: somebody is to be woken, and a pager that restarts is back in a minute.
ALERT_WAITS = (*(timedelta(seconds=seconds) for seconds in (5, 15, 30, 60, 120, 300, 600)), *WAITS[2:])
_GONE = 410
Uniform: TypeAlias = Callable[[float, float], float]


def message(event: str, at: datetime, job_id: UUID | None, data: Mapping[str, Any]) -> bytes:
    """The body, the same for every attempt."""
    if job_id is not None:
        data = {**data, "id": ids.public(job_id), "job_id": str(job_id), "errors": data.get("errors") or []}
    return msgspec.json.encode({"type": event, "timestamp": at.astimezone(UTC), "data": data})


def headers(post_id: UUID, at: datetime, body: bytes, secrets: Iterable[str]) -> dict[str, str]:
    """Those of one attempt; with several secrets it has several signatures, so that a receiver may change over."""
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
    """The key that a secret spells; UsageError, which never shows it, if it spells none."""
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
    """Refuse to have a webhook that nobody could verify."""
    if not secrets:
        raise UsageError(
            f"{what} needs a secret to sign with: make one with `dutiful webhooks secret`, and set webhook_secrets "
            "(DUTIFUL_WEBHOOK_SECRETS) to it"
        )


def check_states(states: Iterable[str] | None, what: str) -> list[str] | None:
    """The final states that are to be told of, in their usual order; None stands for all."""
    if states is None:
        return None
    named = {states} if isinstance(states, str) else set(states)
    final = [state.value for state in State if state in FINAL]
    if not named or not named <= set(final):
        raise UsageError(f"{what}: states {sorted(map(str, named))} must be some of: {', '.join(final)}")
    return [state for state in final if state in named]


class Receiver(msgspec.Struct, frozen=True):
    """Whom one job wants told of its end, instead of all others."""

    url: str
    states: list[str] | None = None  # none: all


def read_receiver(value: Any) -> Receiver:
    """What the option `webhook` says: a URL, or {"url", "states"}; where it leads is checked when it is stored."""
    match value:
        case Receiver():
            return value
        case str():
            return Receiver(value)
        case {"url": str(url), **rest} if set(rest) <= {"states"}:
            states: Any = rest.get("states")
            return Receiver(url, check_states(states, "webhook"))
    raise UsageError(f'webhook {value!r:.200} must be a URL, or {{"url": "https://…", "states": ["failed"]}}')


class Answer(msgspec.Struct, frozen=True):
    """What a receiver said."""

    status: int
    body: bytes = b""  # its beginning, as it was sent
    retry_after: str | None = None


class Fate(StrEnum):
    """What becomes of a message after an attempt."""

    DELIVERED = "delivered"
    AGAIN = "again"
    GIVEN_UP = "given_up"
    GONE = "gone"  # given up, and the receiver wants no others either


@dataclass(frozen=True, slots=True)
class Verdict:
    fate: Fate
    delay: timedelta | None = None
    error: str | None = None


def judge(
    answer: Answer, attempts: int, now: datetime, uniform: Uniform, waits: Sequence[timedelta] = WAITS
) -> Verdict:
    """What an answer means to a message that was tried `attempts` times."""
    if 200 <= answer.status < 300:
        return Verdict(Fate.DELIVERED)
    told = _told(answer)
    if answer.status == _GONE:
        return Verdict(Fate.GONE, error=told)
    return again(told, attempts, uniform, waits, at_least=_at_least(answer.retry_after, now))


def again(
    error: str,
    attempts: int,
    uniform: Uniform,
    waits: Sequence[timedelta] = WAITS,
    *,
    at_least: timedelta = timedelta(0),
) -> Verdict:
    """Try it once more after a while, or give it up when it was tried often enough."""
    cut = clean(error, ERROR_LIMIT)
    if attempts > len(waits):
        return Verdict(Fate.GIVEN_UP, error=f"given up after {attempts} attempts: {cut}")
    wait = max(waits[max(attempts, 1) - 1], at_least)
    return Verdict(Fate.AGAIN, wait * (1 + uniform(0, JITTER)), cut)


def give_up(error: str) -> Verdict:
    return Verdict(Fate.GIVEN_UP, error=clean(error, ERROR_LIMIT))


def _at_least(retry_after: str | None, now: datetime) -> timedelta:
    """What a Retry-After header asks for, as far as we go along with it."""
    return min(wait_from(now, read_retry_after(retry_after)) or timedelta(0), LONGEST_WAIT)


def _told(answer: Answer) -> str:
    status = answer.status
    try:
        words = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        words = str(status)
    if 300 <= status < 400:
        words += " (redirects are not followed: give the final URL)"
    text = " ".join(answer.body[:1_000].decode(errors="replace").split())
    return clean(f"it answered {words}{f': {text}' if text else ''}", ERROR_LIMIT)
