"""What functions of payloads replied, and how a job ends by it."""

from typing import Any

import msgspec

from dutiful.channels.envelope import FAILED, Envelope, EnvelopeInvalid, read_envelope
from dutiful.core.errors import PayloadInvalid
from dutiful.core.json import encode
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import make_error, storable

LONGEST_STATUS = 200  # characters of a status
LONGEST_TEXT = 1_000  # characters that an error handler is given
RESULT_LIMIT = 1024 * 1024  # bytes of what a provider returns


class Reply(msgspec.Struct, frozen=True):
    """What a function replied; `problem` names it, and says what is wrong, unless it succeeded."""

    role: str  # db_function, before_handler…
    function: str
    envelope: Envelope
    problem: str | None = None
    type: str = "FunctionStatus"
    explicit: bool = False  # it succeeded, or gave a status of its own, which is no error in itself

    @property
    def errors(self) -> tuple[dict[str, Any], ...]:
        if self.problem is None:
            return ()
        return (error_of(self.type, self.problem, retryable=self.envelope.retryable),)


class Ending(msgspec.Struct, frozen=True):
    """How a job ends: the result and the errors with which it is completed."""

    status: str
    accepted: bool | None = None  # whether the provider has accepted; None: there is none
    errors: tuple[dict[str, Any], ...] = ()

    @property
    def result(self) -> str:
        known: dict[str, Any] = {"status": storable(self.status, LONGEST_STATUS)}
        if self.accepted is not None:
            known["accepted"] = self.accepted
        return msgspec.json.encode(known).decode()


def read_reply(role: str, function: str, text: str | None) -> Reply:
    try:
        envelope = read_envelope(text)
    except EnvelopeInvalid as error:
        return Reply(
            role, function, Envelope(FAILED), storable(f"{role} {function} {error}", LONGEST_TEXT), "EnvelopeInvalid"
        )
    if envelope.succeeded:
        return Reply(role, function, envelope, explicit=True)
    if envelope.problem is None:
        problem = storable(f'{role} {function} answered "{envelope.status}"', LONGEST_TEXT)
        return Reply(role, function, envelope, problem, explicit=True)
    return Reply(
        role,
        function,
        envelope,
        storable(f"{role} {function} failed: {envelope.problem}", LONGEST_TEXT),
        "FunctionFailed",
    )


def failed_reply(role: str, function: str, type: str, message: str) -> Reply:
    """The reply of a function that raised, or may not be run."""
    return Reply(role, function, Envelope(FAILED), storable(f"{role} {function} failed: {message}", LONGEST_TEXT), type)


def after_function(reply: Reply) -> Ending:
    """How a job of the kind db_function ends. A status is an answer, and no error."""
    return Ending(reply.envelope.status, None, () if reply.explicit else reply.errors)


def worker_payload(channel: str, value: Any) -> tuple[str, tuple[dict[str, Any], ...]]:
    """What a provider returned as JSON text; null, and an error, if it cannot be written.

    It has accepted all the same: to call it again would do its work twice.
    """
    try:
        return encode(value, what=f"answer of channel {channel}", limit=RESULT_LIMIT), ()
    except PayloadInvalid as error:
        return "null", (error_of("AnswerInvalid", f"{error}; worker_payload is null"),)
    except (Exception, SystemExit) as error:  # of the value itself, as it is read
        message = f"the answer of channel {channel} cannot be written as JSON: {type(error).__name__}"
        return "null", (error_of("AnswerInvalid", f"{message}; worker_payload is null"),)


def error_of(type: str, message: str, *, retryable: bool = True) -> dict[str, Any]:
    return make_error(type, message, ErrorClass.RETRYABLE if retryable else ErrorClass.NON_RETRYABLE)
