"""What the HTTP APIs of the examples accept as text, and how they refuse what they cannot read."""

from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, StringConstraints, field_validator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST = 1_000_000
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


class Bounded:
    """Reads no body further than to `LARGEST` bytes, but for paths with this ending, which bound theirs themselves."""

    def __init__(self, app: ASGIApp, streamed: str) -> None:
        self._app = app
        self._streamed = streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        count = 0

        async def receive_some() -> Message:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > LARGEST:
                raise HTTPException(413, f"the body has over {LARGEST:,} bytes")
            return message

        streamed = scope["type"] != "http" or scope["path"].endswith(self._streamed)
        await self._app(scope, receive if streamed else receive_some, send)


def new_api(*, streamed: str = "(none)", **options: Any) -> FastAPI:
    """An application that names the fields it refuses; `streamed` is the ending of paths whose bodies may be large."""
    api = FastAPI(**options)
    api.add_middleware(Bounded, streamed=streamed)
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
