"""What every site of the examples does for the browser's sake."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Guarded:
    """Refuses changes from other sites' pages, and sets a content security policy."""

    def __init__(self, app: ASGIApp, pictures: str = "") -> None:
        self._app = app
        own = ("script-src", "style-src", "connect-src")
        blocked = ("base-uri", "form-action", "frame-ancestors")
        rules = ["default-src 'none'", *(f"{one} 'self'" for one in own), *(f"{one} 'none'" for one in blocked)]
        self._headers = {
            "content-security-policy": "; ".join([*rules, f"img-src 'self' {pictures}".rstrip()]),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        site = Headers(scope=scope).get("sec-fetch-site", "none")
        if scope["method"] != "GET" and site not in ("same-origin", "none"):
            await Response("only allowed from this site", 403)(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)
