"""The ASGI application that sends a stream of events."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from contextlib import aclosing
from datetime import datetime
from http import HTTPStatus
from inspect import isawaitable
from typing import Any
from urllib.parse import parse_qs

import msgspec

from dutiful.app import Dutiful
from dutiful.core import ids
from dutiful.core.errors import DutifulError, JobNotFound, StoreUnavailable, UsageError
from dutiful.events import Subscription
from dutiful.web.sse import HEADERS, PING, event_stream

log = logging.getLogger("dutiful.web")
# How long a client may take to receive one piece before it counts as disconnected.
PATIENCE = 30.0
NAMES = ("job", "kind", "queue", "tenant", "correlation_id", "type", "since")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Allow = Callable[[Message], "Subscription | Awaitable[Subscription | None] | None"]


class EventsEndpoint:
    """Serves one path: `GET …?job=ID`, or `?kind=…&queue=…&type=…&since=…`; all but `since` may be repeated.

    `allow(scope)` decides who may see what: it returns a Subscription that narrows the request, or None to refuse it.
    Use it as a route, `api.routes.append(Route("/events", EventsEndpoint(app)))`, or serve it alone.
    """

    def __init__(self, app: Dutiful, *, allow: Allow | None = None, ping: float = PING) -> None:
        self._app = app
        self._allow = allow
        self._ping = ping

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._answer(scope, receive, send)
            case "lifespan":
                await self._live(receive, send)
            case kind:
                raise UsageError(f"events are sent over http, not over {kind}")

    async def _live(self, receive: Receive, send: Send) -> None:
        """Opens and closes the app, when it is served alone."""
        while True:
            match (await receive())["type"]:
                case "lifespan.startup":
                    await self._app.client()
                    await send({"type": "lifespan.startup.complete"})
                case _:
                    await self._app.close()
                    await send({"type": "lifespan.shutdown.complete"})
                    return

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await _refuse(send, HTTPStatus.METHOD_NOT_ALLOWED, "ask with GET", {"allow": "GET"})
            return
        allowed = self._allow(scope) if self._allow is not None else Subscription()
        limit = await allowed if isawaitable(allowed) else allowed
        if limit is None:
            await _refuse(send, HTTPStatus.FORBIDDEN, "you may not see these events")
            return
        try:
            chunks = self._chunks(scope, limit)
            first = await anext(chunks)
        except JobNotFound as error:
            await _refuse(send, HTTPStatus.NOT_FOUND, str(error))
        except UsageError as error:
            await _refuse(send, HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except StoreUnavailable as error:
            await _refuse(send, HTTPStatus.SERVICE_UNAVAILABLE, str(error), {"retry-after": "2"})
        else:
            await send_stream(first, chunks, _encoded(HEADERS), receive, send)

    def _chunks(self, scope: Message, limit: Subscription) -> AsyncGenerator[bytes, None]:
        asked = _asked(scope.get("query_string", b""))
        headers = dict(scope.get("headers", ()))
        jobs = frozenset(ids.parse_any(text) for text in asked["job"]) if "job" in asked else None
        wanted = Subscription.read(
            jobs,
            asked.get("kind"),
            asked.get("queue"),
            _only("tenant", asked),
            _only("correlation_id", asked),
            asked.get("type"),
        ).within(limit)
        if hidden := (jobs or frozenset()) - (wanted.jobs or frozenset()):
            raise JobNotFound(f"there is no job {ids.public(min(hidden))}, or you may not see it")
        return event_stream(
            self._app,
            wanted.jobs,
            ping=self._ping,
            last_event_id=headers.get(b"last-event-id", b"").decode("latin-1"),
            since=_moment(_only("since", asked)),
            kinds=wanted.kinds,
            queues=wanted.queues,
            tenant=wanted.tenant,
            correlation_id=wanted.correlation_id,
            types=wanted.types,
        )


async def send_stream(
    first: bytes, chunks: AsyncGenerator[bytes, None], headers: Headers, receive: Receive, send: Send
) -> None:
    """Sends a whole response, whose first piece is known, until it ends or the client disconnects."""
    async with aclosing(chunks):
        await _until_disconnected(receive, _send_all(first, chunks, headers, send))


async def _send_all(first: bytes, chunks: AsyncGenerator[bytes, None], headers: Headers, send: Send) -> None:
    """Ends the response if the client is too slow; the client reconnects."""
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        piece: bytes | None = first
        while piece is not None:
            await _send_piece(send, piece)
            piece = await _next_piece(chunks)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    except TimeoutError:
        return


async def _next_piece(chunks: AsyncGenerator[bytes, None]) -> bytes | None:
    """The next piece; None at the end, also after an error, which is logged because the response has begun."""
    try:
        return await anext(chunks, None)
    except DutifulError as error:
        log.warning("a stream of events has ended early: %s", error)
    except Exception:
        log.exception("a stream of events has ended early")
    return None


async def _send_piece(send: Send, piece: bytes) -> None:
    async with asyncio.timeout(PATIENCE):
        await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _until_disconnected(receive: Receive, sending: Coroutine[Any, Any, None]) -> None:
    """Sends until all is sent or the client disconnects."""
    tasks = [asyncio.create_task(sending), asyncio.create_task(_disconnected(receive))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> None:
    body = msgspec.json.encode({"type": "about:blank", "title": status.phrase, "status": status, "detail": detail})
    fields = {"content-type": "application/problem+json", "content-length": str(len(body)), **(headers or {})}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(fields)})
    await send({"type": "http.response.body", "body": body})


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _asked(query: bytes) -> dict[str, list[str]]:
    """The query's parameters; a blank or misspelt one is refused, because it would select everything."""
    try:
        asked = parse_qs(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise UsageError("the query is not UTF-8, percent-encoded") from None
    for name, values in asked.items():
        if name not in NAMES:
            raise UsageError(f"there is no parameter {name!r}; there are: {', '.join(NAMES)}")
        if not all(values):
            raise UsageError(f"{name} is empty: give it a value, or leave it out")
    return asked


def _only(name: str, asked: Mapping[str, list[str]]) -> str | None:
    match asked.get(name, []):
        case []:
            return None
        case [value]:
            return value
        case values:
            raise UsageError(f"{name} is given {len(values)} times: give it once")


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"since is {text!r}: write it as in 2030-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise UsageError(f"since is {text!r}, which has no time zone: write it as in 2030-01-31T12:00:00Z")
    return moment
