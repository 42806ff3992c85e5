"""What the HTTP APIs of the examples accept as text, and how they refuse what they cannot read."""

from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, StringConstraints, field_validator

# A line that every database stores and every reader shows: without NUL and other control characters.
Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, pattern=r"^[^\p{Cc}\p{Zl}\p{Zp}]*$")]


class Body(BaseModel):
    """What a caller sends; a text that is none is refused by its field."""

    @field_validator("*", mode="before")
    @classmethod
    def _readable(cls, value: Any) -> Any:
        # JSON may escape half a character: not every validator notices, and no database takes it.
        if isinstance(value, str) and value.encode(errors="replace").decode() != value:
            raise ValueError("it has a lone surrogate in it: leave it out")
        return value


def new_api(**options: Any) -> FastAPI:
    """An application that names the fields it refuses."""
    api = FastAPI(**options)
    api.add_exception_handler(RequestValidationError, _name_fields)
    return api


async def _name_fields(request: Request, error: Exception) -> JSONResponse:
    """Without the values, as FastAPI would have it: not every one can be written as JSON, and some are passwords."""
    assert isinstance(error, RequestValidationError)
    problems = [{"loc": [_plain(part) for part in one["loc"]], "msg": _plain(one["msg"])} for one in error.errors()]
    return JSONResponse({"detail": problems}, 422)


def _plain(part: object) -> object:
    """The names of fields are the caller's, too."""
    return part if isinstance(part, int) else str(part).encode(errors="backslashreplace").decode()[:200]
