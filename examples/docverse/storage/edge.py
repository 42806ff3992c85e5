"""The CDN's edge: serves pages from the object store, by keys that name the build of each edition.

It keeps each key in a JSON file, with the number of its latest writer, and pages in memory until they are purged.
`/ORG/PROJECT/` is the main edition, `/ORG/PROJECT/v/SLUG/` any edition, `/ORG/PROJECT/v/` the dashboard; keys are
written at `/_kv`, caches purged at `/_purge`.
"""

import asyncio
import hashlib
import hmac
import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from examples.docverse.layout import MAIN, Layout, pointer_key
from examples.docverse.storage.object_store import BadKey, DirectoryObjectStore, content_type

CACHED = 5_000  # pages
LARGEST = 64 * 1024  # bytes of a page that is cached
# HTML is shown as what it is in this organization's own pages only; browsers guess nothing.
HEADERS = {"x-content-type-options": "nosniff"}


def org_token(secret: str, org: str) -> str:
    """What an organization's requests for its keys are authorised with."""
    return hmac.new(secret.encode(), f"edge:{org}".encode(), hashlib.sha256).hexdigest()


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The build that an edition shows, and the prefix of its pages; None for an edition that is deleted."""

    build: str | None
    prefix: str | None
    fence: int  # the number of its writer


class Keys:
    """Values by key, each in a JSON file."""

    def __init__(self, folder: Path) -> None:
        self._store = DirectoryObjectStore(folder)
        self._writing = asyncio.Lock()

    async def get(self, key: str) -> Value | None:
        try:
            return msgspec.json.decode(await self._store.get(key), type=Value)
        except KeyError:
            return None

    async def put(self, key: str, value: Value) -> Value | None:
        """The value of a later writer that is there already, or None if this one was written."""
        async with self._writing:
            there = await self.get(key)
            if there and there.fence > value.fence:
                return there
            await self._store.put(key, msgspec.json.encode(value))
            return None


class Cache:
    """Pages by path; the one that was asked for longest ago goes first."""

    def __init__(self) -> None:
        self._pages: OrderedDict[str, bytes] = OrderedDict()
        self.purges = 0

    def get(self, path: str) -> bytes | None:
        if path in self._pages:
            self._pages.move_to_end(path)
        return self._pages.get(path)

    def put(self, path: str, page: bytes, purges: int) -> None:
        # A page that was looked up before a purge may be an old one.
        if purges == self.purges:
            self._pages[path] = page
            if len(self._pages) > CACHED:
                self._pages.popitem(last=False)

    def purge(self, path: str) -> int:
        self.purges += 1
        stale = [page for page in self._pages if page == path or page.startswith(path.rstrip("/") + "/")]
        for page in stale:
            del self._pages[page]
        return len(stale)


def _in_pieces(file: IO[bytes], size: int, key: str) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        with file:
            while piece := await asyncio.to_thread(file.read, LARGEST):
                yield piece

    return StreamingResponse(pieces(), media_type=content_type(key), headers={**HEADERS, "content-length": str(size)})


class EdgeServer:
    def __init__(self, folder: Path, secret: str) -> None:
        self._objects = DirectoryObjectStore(folder / "objects")
        self._keys = Keys(folder / "keys")
        self._cache = Cache()
        self._secret = secret
        self.refused: set[str] = set()  # keys that cannot be written, as in an outage
        self.asked = asyncio.Event()  # a purge was asked for
        self.answering = asyncio.Event()  # cleared, purges are not answered
        self.answering.set()
        self.purged: dict[str, asyncio.Event] = {}  # set when these paths were purged
        self.app = Starlette(
            routes=[
                Route("/_kv/{org}/{project}/{slug}", self.write_key, methods=["PUT"]),
                Route("/_purge/{org}/{path:path}", self.purge, methods=["POST"]),
                Route("/{org}/{project}/{path:path}", self.page, methods=["GET", "HEAD"]),
            ]
        )

    async def write_key(self, request: Request) -> Response:
        org = request.path_params["org"]
        if not self._authorised(request, org):
            return JSONResponse({"error": f"the token is not that of organization {org}"}, 403)
        key = pointer_key(org, request.path_params["project"], request.path_params["slug"])
        if key in self.refused:
            return JSONResponse({"error": f"key {key} cannot be written now"}, 503)
        try:
            value = msgspec.json.decode(await request.body(), type=Value)
            later = await self._keys.put(key, value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, BadKey) as error:
            return JSONResponse({"error": str(error)}, 422)
        return Response(msgspec.json.encode(later or value), 409 if later else 200, media_type="application/json")

    async def purge(self, request: Request) -> Response:
        org, path = request.path_params["org"], request.path_params["path"]
        if not self._authorised(request, org):
            return JSONResponse({"error": f"the token is not that of organization {org}"}, 403)
        self.asked.set()
        await self.answering.wait()
        whole = f"{org}/{path}".rstrip("/")
        number = self._cache.purge(whole)
        if whole in self.purged:
            self.purged[whole].set()
        return JSONResponse({"purged": number})

    async def page(self, request: Request) -> Response:
        org, project, path = (request.path_params[name] for name in ("org", "project", "path"))
        layout = Layout(org, project)
        try:
            if path == "v" or (path.startswith("v/") and path.count("/") == 1 and path != "v/"):
                return Response(status_code=308, headers={"location": f"{request.url.path}/"})
            purges = self._cache.purges
            key, shown_as = await self._key(layout, path)
            page = self._cache.get(shown_as)
            if page is None:
                file = await self._objects.open(key)
                if (size := os.fstat(file.fileno()).st_size) > LARGEST:
                    return _in_pieces(file, size, key)
                with file:
                    page = await asyncio.to_thread(file.read)
                self._cache.put(shown_as, page, purges)
        except (KeyError, BadKey):
            return await self._missing(layout)
        headers = {**HEADERS, "etag": f'"{hashlib.sha256(page).hexdigest()[:32]}"'}
        return Response(page, media_type=content_type(key), headers=headers)

    async def _key(self, layout: Layout, path: str) -> tuple[str, str]:
        """The object, and the path below which it is cached."""
        here = f"{layout.org}/{layout.project}"
        if path in ("v/", "__dashboard.html"):
            return layout.dashboard, f"{here}/__dashboard.html"
        if path == "__switcher.json" or path.startswith("__editions/"):
            return layout.file(path), f"{here}/{path}"
        slug, page = MAIN, path
        if path.startswith("v/"):
            slug, _, page = path.removeprefix("v/").partition("/")
        if not page or page.endswith("/"):
            page += "index.html"
        pointer = await self._keys.get(pointer_key(layout.org, layout.project, slug))
        prefix = (pointer.prefix if pointer else None) or layout.edition(slug)
        return f"{prefix}/{page}", f"{here}/v/{slug}/{page}"

    async def _missing(self, layout: Layout) -> Response:
        try:
            return Response(await self._objects.get(layout.not_found), 404, media_type="text/html")
        except (KeyError, BadKey):
            return Response("not found\n", 404, media_type="text/plain")

    def _authorised(self, request: Request, org: str) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(), org_token(self._secret, org).encode())
