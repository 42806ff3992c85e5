"""What a context says about its job: all that a process of its own knows of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.errors import UsageError
from dutiful.core.job import Claim


@dataclass(slots=True, eq=False)
class ClaimFacts:
    """The part of dutiful.Context that can be read from the claim."""

    _claim: Claim
    _payload: str | None = field(default=None, kw_only=True)  # once the rules of its kind have changed it

    @property
    def job_id(self) -> UUID:
        return self._claim.job_id

    @property
    def public_id(self) -> str:
        return ids.public(self._claim.job_id)

    @property
    def kind(self) -> str:
        return self._claim.kind

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def attempt(self) -> int:
        return self._claim.attempt

    @property
    def max_attempts(self) -> int:
        return self._claim.max_attempts

    @property
    def correlation_id(self) -> str:
        return self._claim.correlation

    @property
    def parent_id(self) -> UUID | None:
        return self._claim.parent_id

    @property
    def tenant(self) -> str | None:
        return self._claim.tenant

    @property
    def subject(self) -> Mapping[str, Any]:
        return msgspec.json.decode(self._claim.subject) if self._claim.subject else {}

    @property
    def payload(self) -> Mapping[str, Any]:
        payload: dict[str, Any] = msgspec.json.decode(self.checked_payload)
        return payload

    @property
    def checked_payload(self) -> str:
        """The payload as JSON text, which the kind's rules may have changed."""
        return self._payload or self._claim.payload

    def set_payload(self, payload: str) -> None:
        """Replaces the payload by the one that the kind's rules, in their current version, make of it."""
        self._payload = payload

    @property
    def options(self) -> Mapping[str, Any]:
        return msgspec.json.decode(self._claim.options) if self._claim.options else {}


class ProcessContext(ClaimFacts):
    """What hooks around attempts get in a process of a job: it reaches neither the worker nor the database."""

    __slots__ = ()
    phase = phase_attempt = None
    cancelled = False  # it is killed instead

    def check(self) -> None: ...

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"the process of a job has no ctx.{name}: kind {self.kind} runs with process=True")
