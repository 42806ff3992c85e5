"""Request and response fields that many operations share."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Self
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from dutiful.core import ids
from dutiful.core.duration import duration
from dutiful.core.errors import MalformedId, PayloadInvalid, UsageError
from dutiful.core.json import REPLACED, encode
from dutiful.web.problems import MOST_ERRORS

EXAMPLE_ID = ids.public(UUID("0198a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"))
MOST = 200
MOST_JSON = 8_000
UNKNOWN_FIELD, MORE_UNKNOWN = "unknown_field", "more_unknown"
MOST_ITEMS = 200


class Shape(BaseModel):
    """A part of a response; read from objects with such attributes."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class Ask(BaseModel):
    """A part of a request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_fields(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Adds the known fields to the library's message about an unknown one."""
        names = [field.alias or name for name, field in cls.model_fields.items()]
        kept, more = _without_most_unknown(given, names)
        try:
            return read(kept)
        except ValidationError as error:
            problems = [_problem(one, ", ".join(names) or "none") for one in error.errors()]
            raise ValidationError.from_exception_data(cls.__name__, problems + more) from None


def _without_most_unknown(given: Any, names: Sequence[str]) -> tuple[Any, list[InitErrorDetails]]:
    """Leaves out unknown fields beyond MOST_ERRORS, and returns one error for all of them.

    The library would make an error of each, which takes seconds for a body that is full of them.
    """
    if not isinstance(given, dict) or len(given) <= len(names) + MOST_ERRORS:
        return given, []
    unknown = [name for name in given if name not in names]
    left_out = unknown[MOST_ERRORS:]
    if not left_out:
        return given, []
    shown = {name: given[name] for name in (*names, *unknown[:MOST_ERRORS]) if name in given}
    kind = PydanticCustomError(MORE_UNKNOWN, "and {count} more fields that are unknown", {"count": len(left_out)})
    return shown, [InitErrorDetails(type=kind, loc=(), input=None)]


def _problem(detail: ErrorDetails, known: str) -> InitErrorDetails:
    match detail["type"]:
        case "extra_forbidden":
            kind: str | PydanticCustomError = PydanticCustomError(
                UNKNOWN_FIELD, "there is no such field; there are: {known}", {"known": known}
            )
        case "unknown_field" | "more_unknown" as own:  # of a nested part, which has named its own
            kind = PydanticCustomError(own, "{message}", {"message": detail["msg"]})
        case known_type:
            kind = known_type
    return InitErrorDetails(type=kind, loc=detail["loc"], input=detail["input"], ctx=detail.get("ctx", {}))


def _storable(text: str) -> str:
    """Refuses what databases cannot store: NUL and lone surrogates."""
    if "\0" in text:
        raise ValueError("it has a NUL character in it; remove it")
    if text.encode("utf-8", "replace").decode() != text:
        raise ValueError(f"it has a lone surrogate in it; write {REPLACED} instead")
    return text


def _moment(moment: datetime) -> datetime:
    if not 1970 <= moment.year <= 2999:
        raise ValueError("its year should be from 1970 to 2999")
    return moment.astimezone(UTC)


def _length(text: str) -> str:
    try:
        duration(text, name="")
    except UsageError as error:
        raise ValueError(str(error)) from None
    return text


def _job_id(parse: Callable[[str], UUID]) -> Callable[[Any], UUID]:
    def read(given: Any) -> UUID:
        if isinstance(given, UUID):
            return given
        try:
            return parse(str(given))
        except MalformedId as error:
            raise ValueError(str(error)) from None

    return read


def _json_object(text: str) -> str:
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        raise ValueError('it should be a JSON object, as in {"order": 7}') from None
    try:
        encode(found, what="object", limit=MOST_JSON)
    except PayloadInvalid as error:  # one database would refuse it, another would find nothing
        raise ValueError(str(error)) from None
    return text


def _origin(url: str) -> str:
    """Scheme and host of a webhook; the rest may be a secret, as in the URLs of chat services."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if parts.port is None else f":{parts.port}")


_RECEIVER_SCHEMA = {
    "type": "string",
    "examples": ["https://shop.example.com"],
    "description": "Scheme and host; the rest is hidden, because it may be a secret.",
}
_ID_SCHEMA = {"type": "string", "examples": [EXAMPLE_ID], "description": "A job's public id."}

Text = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_storable)]
LongText = Annotated[str, StringConstraints(max_length=2_000), AfterValidator(_storable)]
JsonObject = Annotated[
    str, StringConstraints(max_length=2_000), AfterValidator(_storable), AfterValidator(_json_object)
]
Length = Annotated[str, StringConstraints(max_length=40), AfterValidator(_length)]  # of time, as in 1h30m
Receiver = Annotated[str, AfterValidator(_origin), WithJsonSchema(_RECEIVER_SCHEMA)]
Moment = Annotated[AwareDatetime, AfterValidator(_moment)]
# A single one needs no brackets. Every list of a request is bounded, because each of its items may be an error.
Texts = Annotated[
    list[Text],
    Field(max_length=MOST_ITEMS),
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
]
Limit = Annotated[int, Field(ge=1, le=MOST)]
Cursor = Annotated[str, StringConstraints(min_length=1, max_length=200)]
# In either spelling; ExactJobId, for the public status, only in the public one.
JobId = Annotated[UUID, BeforeValidator(_job_id(ids.parse_any)), WithJsonSchema(_ID_SCHEMA)]
ExactJobId = Annotated[UUID, BeforeValidator(_job_id(ids.parse)), WithJsonSchema(_ID_SCHEMA)]
PublicId = Annotated[UUID, PlainSerializer(ids.public, return_type=str), WithJsonSchema(_ID_SCHEMA)]


class Notes(Ask):
    """Why; kept in the audit trail."""

    notes: LongText | None = Field(default=None, examples=["Fixed validation issue in source data, safe to reprocess"])


class Reason(Ask):
    """Why; kept in the audit trail."""

    reason: LongText | None = Field(default=None, examples=["the mail server is down"])


class Removed(Shape):
    name: str
    removed: bool


# An action needs no body.
NO_NOTES, NO_REASON = Notes(), Reason()
