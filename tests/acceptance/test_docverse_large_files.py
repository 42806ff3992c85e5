"""The documentation host and files that are larger than its memory."""

import gzip
import hashlib
import io
import tarfile
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from docverse import SECRET, SUPERUSER, Host
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from examples.docverse.storage.edge import EdgeServer
from examples.docverse.storage.object_store import DirectoryObjectStore
from examples.docverse.storage.tarball import BadTarball, Limits, unpack

pytest_plugins = ["docverse_fixtures"]


def test_a_text_about_a_file_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("index.html")
    member.pax_headers = {"comment": "x" * 1_000_000}
    file = tmp_path / "long.tar.gz"
    file.write_bytes(gzip.compress(member.tobuf(tarfile.PAX_FORMAT) + b"\0" * 1024))
    with pytest.raises(BadTarball, match="a header of over 65,536 bytes"):
        unpack(file, lambda name, data: None)


async def test_a_file_larger_than_the_memory_passes_through_the_store_in_pieces(tmp_path: Path) -> None:
    size = 24 * 1024 * 1024
    file, store = tmp_path / "large.tar.gz", DirectoryObjectStore(tmp_path / "objects")
    with tarfile.open(file, "w:gz") as archive:
        member = tarfile.TarInfo("large.zip")
        member.size = size
        archive.addfile(member, io.BytesIO(b"x" * size))
    tracemalloc.start()
    try:
        assert unpack(file, lambda name, data: store.put_now(f"build/{name}", data), Limits(ratio=size)) == 1
        await store.copy("build/large.zip", "edition/large.zip")
        (info,) = await store.objects("edition")
        edge = EdgeServer(tmp_path, SECRET)
        transport = httpx2.ASGITransport(app=Discarding(edge.app))
        await store.move("edition", "orgs/rubin/projects/guide/editions/__main")
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await client.get("/rubin/guide/large.zip")
            assert (answer.status_code, answer.headers["content-length"]) == (200, str(size))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (info.size, info.content_hash) == (size, hashlib.sha256(b"x" * size).hexdigest())
    assert most < size / 2, f"{most:,} bytes at a time"


class Discarding:
    """Counts what is sent instead of keeping it, as a client's buffer would."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def count(message: Message) -> None:
            if message["type"] == "http.response.body":
                self.sent += len(message.get("body", b""))
                message = {**message, "body": b""}
            await send(message)

        await self._app(scope, receive, count)


async def test_a_body_that_no_request_needs_is_not_read_to_its_end(host: Host) -> None:
    """Bodies are read before it is known who sends them."""

    async def large() -> AsyncIterator[bytes]:
        for _ in range(32):
            yield b" " * 65_536

    for headers in ({}, {"authorization": f"Bearer {SUPERUSER}"}):
        json = {**headers, "content-type": "application/json"}
        refused = await host.http.post("/orgs", content=large(), headers=json)
        assert (refused.status_code, refused.json()) == (413, {"detail": "the body has over 1,000,000 bytes"})
