"""Parts of the documentation host for tests: a job without a queue, and wrapped stores and edges."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import IO, Any
from uuid import UUID, uuid4

from examples.docverse.config import Config
from examples.docverse.factory import Docverse, open_docverse
from examples.docverse.ports import Edge, ObjectInfo, ObjectStore, Pointer
from examples.docverse.services.hosting import QueueIn
from examples.docverse.storage.edge_client import EdgeClient
from examples.docverse.storage.object_store import DirectoryObjectStore


class PlainJob:
    """A job as services know it, without any queue; it notes what they do, with the locks that are held."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.id: UUID = uuid4()
        self.log: list[str] = [] if log is None else log
        self.held: list[tuple[str, int]] = []

    def lock(self, namespace: str, key: int) -> AbstractAsyncContextManager[object]:
        return self._lock(namespace, key)

    @asynccontextmanager
    async def _lock(self, namespace: str, key: int) -> AsyncIterator[None]:
        self.held.append((namespace, key))
        self.log.append(f"lock {namespace}")
        try:
            yield
        finally:
            self.held.remove((namespace, key))
            self.log.append(f"unlock {namespace}")

    def message(self, text: str) -> None:
        self.log.append(text)

    def ends_by(self, error: Exception) -> bool:
        return False

    def start_editions_phase(self, slugs: Iterable[str]) -> None:
        self.log.append(f"editions {' '.join(slugs)}")

    def mark_edition_completed(self, slug: str) -> None:
        self.log.append(f"completed {slug}")

    def mark_edition_skipped(self, slug: str, reason: str) -> None:
        self.log.append(f"skipped {slug}: {reason}")

    def mark_edition_failed(self, slug: str, error: Exception) -> str | None:
        self.log.append(f"failed {slug}")
        return str(error)


class Window:
    """Is called at every write to the outside, before it begins and after it has ended; tests wait or raise here."""

    async def before(self, operation: str, key: str) -> None: ...

    async def after(self, operation: str, key: str) -> None: ...


class WatchedStore:
    """An object store with a window around each write."""

    def __init__(self, store: ObjectStore, window: Window) -> None:
        self._store = store
        self._window = window

    async def put(self, key: str, data: bytes | IO[bytes]) -> None:
        await self._around("put", key, self._store.put(key, data))

    async def copy(self, source: str, target: str) -> None:
        await self._around("copy", target, self._store.copy(source, target))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self._around("delete", key, self._store.delete([key]))

    async def get(self, key: str) -> bytes:
        return await self._store.get(key)

    async def objects(self, prefix: str) -> list[ObjectInfo]:
        await self._window.before("list", prefix)
        return await self._store.objects(prefix)

    async def move(self, prefix: str, target: str) -> bool:
        return await self._store.move(prefix, target)

    async def delete_prefix(self, prefix: str) -> int:
        return await self._store.delete_prefix(prefix)

    async def _around(self, operation: str, key: str, write: Any) -> None:
        try:
            await self._window.before(operation, key)
        except BaseException:
            write.close()
            raise
        await write
        await self._window.after(operation, key)


class WatchedEdge:
    """An edge with a window around each write."""

    def __init__(self, edge: Edge, org: str, window: Window) -> None:
        self._edge = edge
        self._org = org
        self._window = window

    async def point(self, key: str, pointer: Pointer, fence: int) -> bool:
        await self._window.before("point", key)
        done = await self._edge.point(key, pointer, fence)
        await self._window.after("point", key)
        return done

    async def unpoint(self, key: str, fence: int) -> bool:
        await self._window.before("unpoint", key)
        return await self._edge.unpoint(key, fence)

    async def purge(self, path: str) -> None:
        await self._window.before("purge", f"{self._org}/{path}")
        await self._edge.purge(path)
        await self._window.after("purge", f"{self._org}/{path}")


def watched(window: Window) -> Any:
    """What `docverse_app` opens its services with, so that all writes pass through the window."""

    @asynccontextmanager
    async def opened(config: Config, queue_in: QueueIn) -> AsyncIterator[Docverse]:
        import httpx2

        async with httpx2.AsyncClient(timeout=30, trust_env=False) as http:

            def edge_for(org: str, token: str) -> Edge:
                return WatchedEdge(EdgeClient(http, config.edge_url, org, token), org, window)

            objects = WatchedStore(DirectoryObjectStore(config.objects), window)
            async with open_docverse(config, queue_in, objects=objects, edge_for=edge_for) as services:
                yield services

    return opened


class Held(Window):
    """Stops the first write of an operation whose key has an ending, until it is released."""

    def __init__(self, operation: str, ending: str) -> None:
        self._operation, self._ending = operation, ending
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    async def before(self, operation: str, key: str) -> None:
        if operation == self._operation and key.endswith(self._ending) and not self.reached.is_set():
            self.reached.set()
            await self.released.wait()


class Log(Window):
    """Notes every write that has ended."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    async def after(self, operation: str, key: str) -> None:
        self._log.append(f"{operation} {key.rpartition('/site/')[2]}")
