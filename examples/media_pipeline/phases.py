"""The three phases of a media job: download a file, process it, upload the product."""

import asyncio
import base64
import hashlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from dutiful import Context, Inject, JobRecord
from examples.media_pipeline.media import make
from examples.media_pipeline.queue import Recoverable

PIECE = 32 * 1024
PAUSE = 0.002  # Python runs one thread at a time: let the event loop run


class Fetched(msgspec.Struct, frozen=True):
    path: str
    size: int
    digest: str


class Product(msgspec.Struct, frozen=True):
    path: str
    suffix: str
    found: dict[str, Any]


class Receipt(msgspec.Struct, frozen=True):
    url: str
    digest: str
    found: dict[str, Any]


async def download(
    ctx: Context,
    source: str,
    http: httpx2.AsyncClient = Inject("http"),
    folder: Path = Inject("folder"),
) -> Fetched:
    path, size, summed = folder / f"{ctx.job_id}.source", 0, hashlib.sha256()
    try:
        async with http.stream("GET", source) as response:
            check(response)
            total = int(response.headers["content-length"])
            with path.open("wb") as file:
                async for piece in response.aiter_raw():
                    file.write(piece)
                    summed.update(piece)
                    size += len(piece)
                    ctx.progress(100 * size / total, f"{size / 1e6:.1f} of {total / 1e6:.1f} MB")
            promised = response.headers["content-digest"]
    except httpx2.TransportError as error:
        raise Recoverable(f"{source} was not fetched: {error}") from error
    if digest(summed.digest()) != promised:
        raise Recoverable(f"{source} arrived damaged")
    return Fetched(str(path), size, promised)


def process(ctx: Context, download: Fetched, folder: Path = Inject("folder")) -> Product:
    """A plain function, so it runs in a thread; at every percent it checks whether its job was cancelled."""
    reported = 0

    def report(percent: float) -> None:
        nonlocal reported
        if percent >= reported + 1:
            reported = int(percent)
            ctx.check()
            ctx.progress(percent, "row by row")
            time.sleep(PAUSE)

    made = make(Path(download.path).read_bytes(), report)
    path = folder / f"{ctx.job_id}.product"
    path.write_bytes(made.body)
    return Product(str(path), made.suffix, made.found)


async def upload(ctx: Context, process: Product, target: str, http: httpx2.AsyncClient = Inject("http")) -> Receipt:
    body = await asyncio.to_thread(Path(process.path).read_bytes)
    own = digest(hashlib.sha256(body).digest())

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), PIECE):
            yield body[start : start + PIECE]
            ctx.progress(100 * min(start + PIECE, len(body)) / len(body), "waiting for the receipt")

    url = f"{target}.{process.suffix}"
    try:
        headers = {"content-digest": own, "content-length": str(len(body))}
        response = await http.put(url, content=pieces(), headers=headers)
    except httpx2.TransportError as error:
        raise Recoverable(f"{url} was not uploaded: {error}") from error
    check(response)
    if response.json()["digest"] != own:
        raise Recoverable(f"{url} arrived damaged")
    return Receipt(url, own, process.found)


PHASES = (download, process, upload)


class Refused(Exception):
    """The other side refuses it permanently."""


def check(response: httpx2.Response) -> None:
    """Raises Recoverable for a server error, Refused for a client error."""
    if response.status_code >= 500:
        raise Recoverable(f"{response.url} answered {response.status_code}")
    if response.status_code >= 400:
        raise Refused(f"{response.url} answered {response.status_code}")


def digest(raw: bytes) -> str:
    """The value of a Content-Digest header."""
    return f"sha-256=:{base64.b64encode(raw).decode()}:"


class Workspace:
    """What the phases share: an HTTP client, and a folder for temporary files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def resources(self) -> tuple[Any, ...]:
        async def http() -> AsyncIterator[httpx2.AsyncClient]:
            async with httpx2.AsyncClient(timeout=30, trust_env=False) as client:
                yield client

        def folder() -> Path:
            self.path.mkdir(parents=True, exist_ok=True)
            return self.path

        return http, folder

    def clear(self, job: JobRecord) -> None:
        """Deletes the files of a deleted job; for JobQueue's on_delete."""
        for path in self.path.glob(f"{job.id}.*"):
            path.unlink()
